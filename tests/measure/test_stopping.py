"""When a timing ends, and what it never asks."""

from __future__ import annotations

import math

import pytest

from bench_prep.measure.records import ARMS, Block, Round
from bench_prep.measure.stopping import (
    Ending,
    FixedRounds,
    Progress,
    TargetWidth,
    TimeBudget,
    criteria,
)
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT
from bench_prep.settings import Method


def scattered(centre: float, spread: float, count: int = 12) -> list[float]:
    """d of rounds with ratios from `centre * (1 - spread)` to `centre * (1 + spread)`."""
    return [
        math.log(centre * (1 + spread * (2 * index / (count - 1) - 1))) for index in range(count)
    ]


def met(log_ratios: list[float], half_width: float = 0.005) -> bool:
    return TargetWidth(half_width).met(Progress(log_ratios, len(log_ratios), 0, 0))


def test_the_target_is_a_width_and_no_significance() -> None:
    assert met(scattered(1.0, 0.002)) and met(scattered(1.3, 0.002)) and met(scattered(0.7, 0.002))
    assert not met(scattered(1.0, 0.02))
    assert not met(scattered(1.1, 0.02)), "far from 0, and not yet known to half a per cent"


def test_the_width_is_relative_to_the_slower_arm() -> None:
    assert met(scattered(1 / 40, 0.15)), "of the baseline's time, it is known to 0.4 %"
    assert not met(scattered(40, 0.15))
    assert met(scattered(40, 0.004)), "0.4 % of the candidate's time"


def test_no_target_before_there_is_an_interval() -> None:
    assert not met([0.0] * (ROUNDS_FOR_VERDICT - 1))
    assert met([0.0] * ROUNDS_FOR_VERDICT)


@pytest.mark.parametrize(("elapsed", "last", "ends"), [(50, 9, False), (50, 11, True)])
def test_the_budget_has_no_room_for_another_round(elapsed: float, last: float, ends: bool) -> None:
    assert TimeBudget(60).met(Progress([], 1, elapsed, last)) is ends


def test_a_fixed_plan_counts_all_rounds() -> None:
    assert not FixedRounds(3).met(Progress([], 2, 0, 0))
    assert FixedRounds(3).met(Progress([], 3, 0, 0))


def test_rounds_that_do_not_count_have_no_say() -> None:
    def round_of(candidate: int, left_out: str = "") -> Round:
        before, middle, after = (
            Block(arm, {"host": [1], "ready": [time]})
            for arm, time in zip(ARMS, (1000, candidate, 1000), strict=True)
        )
        return Round((before, middle, after), left_out)

    wild = [round_of(9000, "throttled")] * 5
    assert Ending(Method()).after([round_of(1000)] * (ROUNDS_FOR_VERDICT - 1) + wild, 1, 1) is None
    ending = Ending(Method())
    assert ending.after(wild, 1, 1) is None
    assert ending.after([round_of(1000)] * ROUNDS_FOR_VERDICT, 2, 1) == "width"
    assert Ending(Method()).after(wild, 59, 2) == "budget"
    assert Ending(Method(rounds=5)).after(wild, 1, 1) == "rounds"
    assert Ending(Method(rounds=6)).after(wild, 1e6, 1) is None


def test_of_rounds_and_budget_the_first_that_is_reached_ends() -> None:
    block = {"host": [1], "ready": [1]}
    one = Round(tuple(Block(arm, block) for arm in ARMS))  # type: ignore[arg-type]
    both = Method(rounds=5, budget_s=9)
    assert Ending(both).after([one] * 4, 8.5, 1) == "budget"
    assert Ending(both).after([one] * 5, 8, 1) == "rounds"
    assert Ending(both).after([one] * 4, 8, 1) is None


def test_the_criteria_of_a_method() -> None:
    assert criteria(Method(margin=0.02, budget_s=7)) == (TargetWidth(0.01), TimeBudget(7))
    assert criteria(Method(rounds=7)) == (FixedRounds(7), TimeBudget(math.inf))
    assert criteria(Method(rounds=7, budget_s=9)) == (FixedRounds(7), TimeBudget(9))
    assert [criterion.name for criterion in criteria(Method())] == ["width", "budget"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"margin": 0},
        {"margin": 1},
        {"margin": math.nan},
        {"budget_s": 0},
        {"budget_s": math.inf},
        {"rounds": 0},
        {"iters": 0},
        {"warmup": -1},
    ],
)
def test_impossible_methods(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Method(**wrong)  # type: ignore[arg-type]

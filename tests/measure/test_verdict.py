"""The paired estimate, its exact interval, and the rule."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from bench_prep.measure.comparison import judge
from bench_prep.measure.records import ARMS, Block, Round
from bench_prep.measure.verdict import (
    CONFIDENCE,
    ROUNDS_FOR_VERDICT,
    Effect,
    clocks_of,
    effect_of,
    log_ratio,
    verdict,
    walsh_interval,
)

values = st.floats(min_value=-1, max_value=1, allow_nan=False)


def test_the_estimate_of_the_published_blocks() -> None:
    effect = effect_of([log_ratio(0.259076, 0.101048, 0.258436)])
    assert effect.value == pytest.approx(0.101048 / math.sqrt(0.259076 * 0.258436) - 1)
    assert (effect.low, effect.high, effect.rounds) == (None, None, 1)
    assert effect.half_width == math.inf


@given(st.floats(min_value=1e-3, max_value=1e3), st.floats(min_value=0.5, max_value=1.5))
def test_a_drift_that_is_linear_in_the_logarithm_cancels(start: float, factor: float) -> None:
    assert log_ratio(start, start * factor, start * factor**2) == pytest.approx(0, abs=1e-9)


@given(values, values, values)
def test_the_arms_are_treated_alike(a: float, b: float, c: float) -> None:
    """Neither the order of the baseline's blocks nor the unit matters, as for no other figure."""
    times = [math.exp(value) for value in (a, b, c)]
    assert log_ratio(*times) == pytest.approx(log_ratio(*times[::-1]))
    assert log_ratio(*times) == pytest.approx(log_ratio(*(7 * time for time in times)))


@pytest.mark.parametrize("count", [ROUNDS_FOR_VERDICT, 12])
def test_the_interval_is_that_of_all_signs(count: int) -> None:
    """A centre is outside when too few of the 2**n choices of signs have so small a rank sum."""
    data = np.random.default_rng(count).normal(0.01, 0.02, count)
    _, low, high = walsh_interval(data)
    assert low is not None and high is not None
    ranks = np.arange(1, count + 1)
    sums = np.array([sum(s) for s in itertools.product(*((0, rank) for rank in ranks))])

    def rejected(centre: float) -> bool:
        shifted = data - centre
        order = np.argsort(np.argsort(np.abs(shifted))) + 1
        positive = order[shifted > 0].sum()
        smaller = min(positive, ranks.sum() - positive)
        return 2 * np.mean(sums <= smaller) <= 1 - CONFIDENCE

    step = 1e-9
    assert rejected(low - step) and not rejected(low + step)
    assert not rejected(high - step) and rejected(high + step)


@pytest.mark.parametrize("count", [11, 30, 200, 201, 400])
def test_the_interval_agrees_with_scipys_test(count: int) -> None:
    data = np.random.default_rng(count).standard_t(3, count)
    _, low, high = walsh_interval(data)
    assert low is not None and high is not None
    method = "exact" if count <= 200 else "asymptotic"
    for end, outward in ((low, -1), (high, 1)):
        outside = wilcoxon(data - end - outward * 1e-9, method=method).pvalue
        inside = wilcoxon(data - end + outward * 1e-9, method=method).pvalue
        assert outside <= 1 - CONFIDENCE < inside


def test_the_fewest_rounds_have_their_range_as_interval() -> None:
    data = [0.3, 0.1, 0.2, 0.5, 0.9, 0.4, 0.0, 0.7, 0.8, 0.6]
    assert len(data) == ROUNDS_FOR_VERDICT
    assert walsh_interval(data) == (pytest.approx(0.45), 0.0, 0.9)
    assert walsh_interval(data[1:])[1:] == (None, None)


@given(st.lists(values, min_size=ROUNDS_FOR_VERDICT, max_size=40), values)
def test_the_interval_moves_with_the_values(data: list[float], shift: float) -> None:
    centre, low, high = walsh_interval(data)
    assert low is not None and high is not None
    assert low <= centre <= high
    assert min(data) <= low and high <= max(data)
    moved = walsh_interval([value + shift for value in data])
    assert moved == pytest.approx((centre + shift, low + shift, high + shift), abs=1e-9)
    mirrored = walsh_interval([-value for value in data])
    assert mirrored == pytest.approx((-centre, -high, -low), abs=1e-9)


def test_thousands_of_rounds_are_merged_and_give_the_interval_of_as_many() -> None:
    data = np.random.default_rng(1).normal(0, 1, 10_000)
    centre, low, high = walsh_interval(data)
    assert low is not None and high is not None
    assert abs(centre - data.mean()) < 0.01
    assert (high - low) / 2 == pytest.approx(3.09 / 100, rel=0.15)


@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf, 1.0]])
def test_no_centre_of_impossible_values(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="no centre"):
        walsh_interval(bad)


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (-0.004, 0.006, "same"),
        (0.002, 0.009, "same"),  # a difference, and none that counts
        (-0.010, 0.010, "same"),
        (-0.011, 0.004, "inconclusive"),
        (-0.020, 0.020, "inconclusive"),
        (0.002, 0.011, "inconclusive"),  # certain, and perhaps none that counts
        (-0.011, -0.002, "inconclusive"),
        (0.005, 0.019, "slower"),
        (0.015, 0.025, "slower"),
        (-0.025, -0.015, "faster"),
        (0.0, 0.02, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_the_rule(low: float | None, high: float | None, says: str) -> None:
    value = 0.0 if low is None or high is None else (low + high) / 2
    effect = Effect(value, low, high, 10)
    assert verdict(effect, margin=0.01) == says
    assert verdict(effect, margin=0.01, equal=False) == "different"


@pytest.mark.parametrize("rounds", range(1, ROUNDS_FOR_VERDICT))
@pytest.mark.parametrize("candidate", [0.01, 1.0, 100.0])
def test_few_rounds_settle_nothing(rounds: int, candidate: float) -> None:
    assert verdict(effect_of([math.log(candidate)] * rounds), 0.01) == "inconclusive"
    assert verdict(effect_of([math.log(candidate)] * 10), 0.01) != "inconclusive"


def round_of(candidate: int, **clocks: int) -> Round:
    before, middle, after = (
        Block(arm, {"host": [time], **{clock: [factor * time] for clock, factor in clocks.items()}})
        for arm, time in zip(ARMS, (1000, candidate, 1000), strict=True)
    )
    return Round((before, middle, after))


def test_rounds_that_do_not_count_change_nothing() -> None:
    counted = [round_of(980)] * 10
    wild = [replace(round_of(5000), left_out="throttled")] * 7
    judged = judge([*counted, *wild], "host", 0.01)
    assert judged == judge(counted, "host", 0.01)
    assert judged.verdict == "faster"
    assert judged.figures is not None and judged.figures.rounds == 10


def test_blocks_with_different_clocks_are_refused() -> None:
    assert clocks_of([round_of(1, ready=2, device=3)]) == ["host", "ready", "device"]
    with pytest.raises(ValueError, match="same clocks"):
        clocks_of([round_of(1, ready=2), round_of(1)])


def test_without_a_round_that_counts_nothing_is_said() -> None:
    block = Block("candidate", {"host": [5]})
    lost = Round((block, block, block), left_out="throttled")
    judged = judge([lost] * 20, "host", 0.01)
    assert (judged.verdict, judged.figures) == ("inconclusive", None)
    assert judged.effect.low is None and judged.effect.rounds == 0


def bimodal(short: int, long: int, often: int, preempted: int = 0) -> Round:
    """The candidate's steps take `short` us, every `often`th `long` us; the baseline's 100 us."""
    steps = [(long if step % often == 0 else short) * 1000 for step in range(100)]
    lost = [1] * preempted + [0] * (100 - preempted)
    same = {"host": [100_000] * 100, "preempted": [0] * 100}
    one, two, three = (Block(arm, dict(same)) for arm in ARMS)
    return Round((one, Block(two.arm, {"host": steps, "preempted": lost}), three))


@pytest.mark.parametrize(
    ("one", "says", "because"),
    [
        (bimodal(85, 235, 10), "inconclusive", "by the mean"),  # saves nothing
        (bimodal(2, 402, 10), "inconclusive", "by the mean"),  # 2.4x, not 50x
        (bimodal(100, 150, 10), "inconclusive", "by the mean"),  # not the same
        (bimodal(85, 100, 10), "faster", ""),
        (bimodal(100, 100, 10), "same", ""),
        (bimodal(120, 100, 10), "slower", ""),
        (bimodal(85, 85, 10, preempted=30), "inconclusive", "30 % of the candidate's steps"),
        (bimodal(85, 85, 10, preempted=5), "faster", ""),
    ],
)
def test_what_the_medians_leave_out_may_contradict(one: Round, says: str, because: str) -> None:
    judged = judge([one] * 12, "host", 0.01)
    assert judged.verdict == says
    assert judged.withheld.startswith(because) and bool(judged.withheld) == bool(because)


@pytest.mark.parametrize(
    ("times", "together", "apart"),
    [
        ((1000, 1020, 1000), "slower", "slower"),
        ((1000, 980, 1000), "faster", "faster"),
        ((1000, 1000, 1000), "same", "same"),
        # Two processes of the baseline differ by as much as the candidate from the nearer one.
        ((1000, 1030, 1010), "slower", "slower"),
        ((1000, 1025, 1015), "slower", "inconclusive"),
        ((1020, 985, 1000), "faster", "inconclusive"),
        ((1000, 1008, 1016), "same", "inconclusive"),
    ],
)
def test_two_processes_of_the_baseline_differ_by_less_than_a_verdict(
    times: tuple[int, int, int], together: str, apart: str
) -> None:
    blocks = (Block(arm, {"host": [time * 1000]}) for arm, time in zip(ARMS, times, strict=True))
    before, candidate, after = blocks
    rounds = [Round((before, candidate, after))] * 12
    assert judge(rounds, "host", 0.01).verdict == together
    judged = judge(rounds, "host", 0.01, apart=True)
    assert judged.verdict == apart
    assert judged.withheld.startswith("two processes" if apart != together else "")

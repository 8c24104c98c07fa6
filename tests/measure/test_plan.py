"""The A/B/A plan, with steps that only note whose they are."""

from __future__ import annotations

from typing import Any

from bench_prep.measure.plan import rounds
from bench_prep.measure.records import ARMS, Round


class Arm:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def restart(self) -> None:
        self.log.append(f"{self.name} restart")

    def before(self) -> None: ...

    def call(self) -> Any:
        self.log.append(f"{self.name} call")

    def after(self) -> None: ...


def plan(log: list[str], count: int) -> Any:
    return rounds(
        Arm("baseline", log),
        Arm("candidate", log),
        count=count,
        warmup=1,
        iters=2,
        device=None,
        after_block=lambda arm: log.append(f"after {arm}"),
    )


def block(steps: str, arm: str) -> list[str]:
    return [f"{steps} restart", *[f"{steps} call"] * 3, f"after {arm}"]


ROUND = [
    *block("baseline", "baseline_before"),
    *block("candidate", "candidate"),
    *block("baseline", "baseline_after"),
]


def test_a_round_is_baseline_candidate_baseline() -> None:
    log: list[str] = []
    (one,) = plan(log, 1)
    assert log == ROUND
    assert isinstance(one, Round)
    assert tuple(block.arm for block in one.blocks) == ARMS
    for timed in one.blocks:
        assert {clock: len(values) for clock, values in timed.samples.items()} == {
            "host": 2,
            "ready": 2,
        }


def test_a_round_is_given_as_soon_as_it_is_finished() -> None:
    log: list[str] = []
    given = plan(log, 3)
    assert log == []
    next(given)
    assert log == ROUND
    assert len(list(given)) == 2
    assert log == ROUND * 3


def test_a_round_survives_the_way_to_the_parent() -> None:
    (one,) = plan([], 1)
    assert Round.from_json(one.to_json()) == one

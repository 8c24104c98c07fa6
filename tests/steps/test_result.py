"""The plan of the stretches, and what follows from them: what the probes cost, what changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_prep.errors import Inconclusive
from bench_prep.steps.parts import FAST, OWN
from bench_prep.steps.recorder import Switch
from bench_prep.steps.result import change_of, measured_cost, steps_by_stretch
from bench_prep.steps.stretches import NO_DECODE, UNCOUNTED, StepStretches, Stretch, plan

ROUNDS = 12


def series(length: Callable[[int, Stretch], float], *, fast: bool) -> tuple[list[Any], list[Any]]:
    """Steps of every stretch, one uncounted step before each; `length` of time and stretch."""
    stretches = [one for number in range(ROUNDS) for one in plan(number, fast=fast)]
    steps, time = [], 0
    for index, stretch in enumerate(stretches):
        for counted in (UNCOUNTED, index, index, index):
            steps.append((time, counted))
            time += round(length(time, stretch))
    return [*steps, (time, UNCOUNTED)], stretches


@given(st.booleans(), st.integers(0, 100))
def test_a_linear_drift_cancels_in_a_round(fast: bool, number: int) -> None:
    """In the cost of the probes exactly, in the change over two rounds."""
    places: dict[tuple[str, bool], list[int]] = {}
    for one in (plan(number, fast=fast), plan(number + 1, fast=fast)):
        for place, stretch in enumerate(one):
            places.setdefault((stretch.arm, stretch.recorded), []).append(place)
    assert {sum(some) / len(some) for some in places.values()} == {2.5 if fast else 1.5}


def test_what_the_probes_cost_and_what_the_fast_path_changes() -> None:
    def length(time: int, stretch: Stretch) -> float:
        level = 1 + time / 1e9  # drifts by some per cent
        return (
            100_000
            * level
            * (1.03 if stretch.recorded else 1)
            * (0.8 if stretch.arm == FAST else 1)
        )

    steps, stretches = series(length, fast=True)
    lengths = steps_by_stretch(steps, stretches)
    assert {len(some) for some in lengths} == {3}
    for arm in (OWN, FAST):
        cost = measured_cost(lengths, stretches, arm)
        assert cost.value == pytest.approx(0.03, abs=2e-3)
        assert cost.low is not None and cost.low > 0.02
    change = change_of(lengths, stretches)
    assert change.verdict == "faster"
    assert change.effect.value == pytest.approx(-0.2, abs=2e-3)


def test_without_the_fast_path() -> None:
    steps, stretches = series(lambda time, stretch: 1000, fast=False)
    assert measured_cost(steps_by_stretch(steps, stretches), stretches, OWN).value == 0
    with pytest.raises(Inconclusive, match="no steps"):
        measured_cost([[] for _ in stretches], stretches, OWN)


class _Runner:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> str:
        self.calls.append(scheduler_output)
        return "result"


class _Probes:
    attached = False

    def execute(self, own: Any) -> Any:
        return own

    def attach(self) -> None:
        self.attached = True

    def detach(self) -> None:
        self.attached = False


class _Output:
    def __init__(self, tokens: int, new: bool = False) -> None:
        self.total_num_scheduled_tokens = tokens
        self.scheduled_new_reqs = [None] if new else []


def test_which_steps_fill_a_stretch(tmp_path: Any) -> None:
    runner, probes, switch = _Runner(), _Probes(), Switch(tmp_path)
    stretches = [Stretch(OWN, False, 0), Stretch(OWN, True, 0)]
    recording = StepStretches(runner, None, probes, switch, stretches, warmup=2, iters=3)
    seen = []
    outputs = [_Output(7, True), *[_Output(1)] * 6, _Output(1, True), *[_Output(1)] * 9]
    for output in outputs:
        assert runner.execute_model(output) == "result"
        seen.append((probes.attached, switch.on))
    begins = [begin for begin, _ in recording.steps]
    assert begins == sorted(begins)
    assert [index for _, index in recording.steps] == [
        *(NO_DECODE, UNCOUNTED, UNCOUNTED, 0, 0, 0, UNCOUNTED),  # the next one's warm-up begins
        *(NO_DECODE, UNCOUNTED, UNCOUNTED, UNCOUNTED, 1, 1, 1, UNCOUNTED, UNCOUNTED, UNCOUNTED),
    ]
    assert seen == [(False, False)] * 6 + [(True, True)] * 8 + [(False, False)] * 3
    assert recording.filled
    recording.close()
    assert "execute_model" not in vars(runner)
    assert runner.calls == outputs
    assert len(recording.steps) == len(outputs)

"""The plan of a sweep, with slices of known length."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bench_prep.measure.plan import Take
from bench_prep.measure.records import Arm, Block, Round, Samples
from bench_prep.sweep.axes import Point, points_of
from bench_prep.sweep.laps import (
    LEAST_STEPS,
    MOST_STEPS,
    WARMUP,
    Budget,
    Laps,
    lap_times_us,
    pace_of,
)
from tests.sweep.synthetic import REFERENCE

AXES = ("max_num_reqs", "groups")
POINTS = points_of(AXES, 3, REFERENCE)


class Machine:
    """Takes slices in no time; of what it took, `taken` knows. `noise` is of a slice."""

    def __init__(self, noise: float = 0.0, disturbed: Point | None = None) -> None:
        self.taken: list[tuple[Point, Arm, int, int]] = []
        self._noise = noise
        self._rng = np.random.default_rng(1)
        self._disturbed = disturbed

    def take(self, point: Point) -> Take:
        def take(arm: Arm, warmup: int, iters: int) -> Samples:
            self.taken.append((point, arm, warmup, iters))
            cost = 2e3 if arm == "candidate" else 1e5 * point.value
            ns = round(cost * np.exp(self._rng.normal(0, self._noise)))
            return {"host": [ns] * iters, "ready": [ns] * iters}

        return take

    def left_out(self) -> str:
        return "disturbed" if self.taken[-1][0] == self._disturbed else ""

    def laps(self, budget_s: float = 60.0, seed: int = 3, margin: float = 0.1) -> Laps:
        takes = {point: self.take(point) for point in POINTS}
        return Laps(takes, self.left_out, margin=margin, budget=Budget(budget_s), seed=seed)


def test_a_lap_has_each_point_once_and_axes_together() -> None:
    taken = [point for point, _ in Machine().laps().rounds()]
    orders = set()
    for start in range(0, len(taken), len(POINTS)):
        lap = taken[start : start + len(POINTS)]
        assert sorted(map(str, lap)) == sorted(map(str, POINTS))
        assert lap[0].axis == lap[1].axis == lap[2].axis
        orders.add(tuple(map(str, lap)))
    assert len(orders) > 4  # drawn, lap by lap


def test_the_order_follows_from_the_seed() -> None:
    orders = [[p for p, _ in Machine().laps(seed=seed).rounds()] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_each_round_is_baseline_candidate_baseline() -> None:
    machine = Machine()
    laps = machine.laps()
    rounds = list(laps.rounds())
    pilots = 6 * len(POINTS)
    arms = [arm for _, arm, _, _ in machine.taken[pilots:]]
    assert arms == ["baseline_before", "candidate", "baseline_after"] * len(rounds)
    assert {warmup for _, _, warmup, _ in machine.taken} == {WARMUP}
    # About 10 ms of the slower arm: 100 steps of 100 us, 12 of 1.6 ms and no fewer.
    steps = {point.value: iters for point, _, _, iters in machine.taken[pilots:]}
    assert steps == {1: 100, 4: 25, 16: LEAST_STEPS, 32: LEAST_STEPS, 1024: LEAST_STEPS}


def test_it_ends_when_all_is_known() -> None:
    laps = Machine().laps()
    counted = Counter(point for point, _ in laps.rounds())
    assert laps.stopped_by == "width"
    assert set(counted.values()) == {12}  # the fewest for three pairs


def test_axes_that_are_known_are_left() -> None:
    class Uneven(Machine):
        def take(self, point: Point) -> Take:
            self._noise, noise = 0.05 if point.axis == "groups" else 0.0, self._noise
            inner = super().take(point)
            loud = self._noise
            self._noise = noise

            def take(arm: Arm, warmup: int, iters: int) -> Samples:
                self._noise = loud
                return inner(arm, warmup, iters)

            return take

    counted = Counter(point.axis for point, _ in Uneven().laps().rounds())
    assert counted["max_num_reqs"] == 12 * 3 < counted["groups"]


@pytest.mark.parametrize("budget_s", [0.0, 0.2])
def test_it_ends_when_the_time_is_over(budget_s: float) -> None:
    laps = Machine(noise=0.5).laps(budget_s, margin=0.001)
    counted = Counter(point for point, _ in laps.rounds())
    assert laps.stopped_by == "budget"
    assert set(counted.values()) == {laps.done} and laps.done >= 1
    if not budget_s:
        assert laps.done == 1


def test_disturbed_rounds_do_not_count() -> None:
    machine = Machine(disturbed=POINTS[0])
    laps = machine.laps(budget_s=0.3)
    rounds = list(laps.rounds())
    assert {one.left_out for point, one in rounds if point == POINTS[0]} == {"disturbed"}
    assert not any(one.left_out for point, one in rounds if point != POINTS[0])
    assert laps.stopped_by == "budget"  # its axis is never known


def round_of(before: int, candidate: int, after: int, **more: object) -> Round:
    def block(arm: Arm, ns: int) -> Block:
        return Block(arm, {"host": [ns] * 20, "ready": [ns] * 20})

    blocks = block("baseline_before", before), block("candidate", candidate)
    return Round((*blocks, block("baseline_after", after)), **more)  # type: ignore[arg-type]


def test_times_of_a_lap() -> None:
    times = lap_times_us(round_of(100_000, 2000, 400_000), "ready")
    assert times == {"baseline": pytest.approx(200), "candidate": 2.0}
    gone = lap_times_us(round_of(100_000, 2000, 400_000, left_out="throttled"), "ready")
    assert all(np.isnan(value) for value in gone.values())


def test_slices_of_a_device_are_taken_twice() -> None:
    one = round_of(400_000, 10_000, 400_000)
    assert pace_of(one).iters == 25
    for block in one.blocks:
        block.samples["device"] = [5000] * 20
    assert pace_of(one).iters == 12
    assert pace_of(round_of(1000, 500, 1000)).iters == MOST_STEPS

"""The plan of a sweep: laps over all points, each timed in baseline / candidate / baseline slices.

A lap takes the axes in drawn order and the points of each in drawn order, so that the points of an
axis are timed within a second or so and in no order that a drift could follow. An axis is left when
its differences are known to a quarter of the margin, and nothing asks whether they are significant.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from bench_prep.measure.plan import SLICE_S, Pace, Take, preempted, take_round
from bench_prep.measure.records import CLOCKS, Clock, Round
from bench_prep.measure.statistics import block_medians_ms
from bench_prep.measure.verdict import decisive
from bench_prep.sweep.axes import Point
from bench_prep.sweep.growth import is_settled

#: Untimed steps of each slice: the slice before it was another point's.
WARMUP = 16
#: Timed steps of the slices that show how long the others should be.
PILOT = 20
#: Timed steps of a slice, at least and at most.
LEAST_STEPS, MOST_STEPS = 12, 200

BASELINE, CANDIDATE = "baseline", "candidate"
ARMS = (BASELINE, CANDIDATE)


def lap_times_us(one: Round, clock: Clock) -> dict[str, float]:
    """What one step of either arm took in a lap; not a number where the round does not count.

    The baseline's two slices count alike: their geometric mean.
    """
    if one.left_out:
        return dict.fromkeys(ARMS, math.nan)
    before, candidate, after = (1000 * value for value in block_medians_ms(one, clock))
    return {BASELINE: math.sqrt(before * after), CANDIDATE: candidate}


def pace_of(pilot: Round) -> Pace:
    """Slices of about `SLICE_S` timed seconds of the slower arm, in both passes of a device."""
    step_ns = max(
        median(block.times(clock) or block.samples[clock])
        for block in pilot.blocks
        for clock in CLOCKS
        if clock in block.samples
    )
    passes = 2 if "device" in pilot.blocks[0].samples else 1
    steps = round(SLICE_S * 1e9 / step_ns / passes)
    return Pace((min(MOST_STEPS, max(LEAST_STEPS, steps)),), WARMUP)


class Budget:
    """The seconds of a sweep, from here on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return self._seconds - self.spent


class Laps:
    """Laps over the points until every axis is settled or the time is over.

    Attributes:
        stopped_by: `width` or `budget`; None while it goes on.
        done: laps that are finished.
    """

    def __init__(
        self,
        takes: Mapping[Point, Take],
        left_out: Callable[[], str],
        *,
        margin: float,
        budget: Budget,
        seed: int,
    ) -> None:
        """`left_out` says after each round why it does not count (`Watch`)."""
        self._takes = takes
        self._left_out = left_out
        self._margin = margin
        self._budget = budget
        self._rng = np.random.default_rng(seed)
        self._times: dict[Point, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.stopped_by: str | None = None
        self.done = 0

    def rounds(self) -> Iterator[tuple[Point, Round]]:
        """Each point's round as soon as it is finished, lap after lap, but for the pilot's."""
        open_axes = list(dict.fromkeys(point.axis for point in self._takes))
        paces = {point: pace_of(self._pilot(take)) for point, take in self._takes.items()}
        self._left_out()
        longest_s = 0.0
        while self.stopped_by is None:
            began = time.monotonic()
            for point in self._drawn(open_axes):
                one = take_round(self._takes[point], paces[point])
                because = "; ".join(filter(None, (self._left_out(), preempted(one))))
                one = replace(one, left_out=because)
                for arm, value in lap_times_us(one, decisive(one)).items():
                    self._times[point][arm].append(value)
                yield point, one
            self.done += 1
            open_axes = [axis for axis in open_axes if not self._is_settled(axis)]
            longest_s = max(longest_s, time.monotonic() - began)
            if not open_axes:
                self.stopped_by = "width"
            elif longest_s > self._budget.left:
                self.stopped_by = "budget"

    def _pilot(self, take: Take) -> Round:
        take_round(take, Pace((1,), WARMUP))  # the first calls of all
        return take_round(take, Pace((PILOT,), WARMUP))

    def _drawn(self, axes: list[str]) -> Iterator[Point]:
        for index in self._rng.permutation(len(axes)):
            points = [point for point in self._takes if point.axis == axes[index]]
            yield from (points[place] for place in self._rng.permutation(len(points)))

    def _is_settled(self, axis: str) -> bool:
        points = [point for point in self._takes if point.axis == axis]
        return len(points) < 2 or all(
            is_settled({p.value: self._times[p][arm] for p in points}, self._margin) for arm in ARMS
        )

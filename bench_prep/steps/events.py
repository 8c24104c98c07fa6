"""What the process of a recorded engine sends."""

from __future__ import annotations

from dataclasses import dataclass

from bench_prep.child.channel import Event
from bench_prep.engine.events import Loaded
from bench_prep.steps.stretches import Stretch

#: Of each step its start in `perf_counter_ns` and its stretch's index (`StepStretches.steps`).
Steps = list[tuple[int, int]]


@dataclass(frozen=True)
class Recordable(Loaded):
    """The engine is there, and can be recorded.

    `record_ns`: what one record costs (`recorder.cost_ns`); `asynchronous`: the next step is
    scheduled before the token of the last one is there.
    """

    record_ns: tuple[float, float]
    asynchronous: bool


@dataclass(frozen=True)
class Recorded(Event):
    """All stretches are filled."""

    stretches: list[Stretch]
    steps: Steps


@dataclass(frozen=True)
class Profiled(Event):
    """One arm's steps under torch's profiler, whose time is `offset_ns` behind the clock's."""

    arm: str
    steps: Steps
    offset_ns: int

"""What the process of a recorded engine sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_prep.child.channel import Event
from bench_prep.steps.stretches import Stretch

#: Of each step its start in `perf_counter_ns` and its stretch's index (`StepStretches.steps`).
Steps = list[tuple[int, int]]


@dataclass(frozen=True)
class Loaded(Event):
    """The engine is there.

    `record_ns`: what one record costs (`recorder.cost_ns`); `asynchronous`: the next step is
    scheduled before the token of the last one is there.
    """

    environment: dict[str, Any]
    settings: dict[str, Any]
    record_ns: tuple[float, float]
    asynchronous: bool


@dataclass(frozen=True)
class Compared(Event):
    """So many steps were prepared by both paths, and left the same."""

    steps: int


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

"""What the timing process of a sweep sends; each of a point names it by axis and value."""

from __future__ import annotations

from dataclasses import dataclass

from bench_prep.child.channel import Event
from bench_prep.measure.records import Clock, Round


@dataclass(frozen=True)
class OfPoint(Event):
    """Something about one point."""

    axis: str
    value: int


@dataclass(frozen=True)
class LeftOut(OfPoint):
    """It is not timed; why."""

    reason: str


@dataclass(frozen=True)
class EqualAt(OfPoint):
    """The proof there: steps, and block boundaries among them."""

    steps: int
    boundaries: int


@dataclass(frozen=True)
class Proved(Event):
    """All points are proved, so many seconds after the beginning; clock costs in nanoseconds."""

    seed: int
    clock_cost: dict[Clock, int]
    seconds: float


@dataclass(frozen=True)
class Lap(OfPoint):
    """A round there, with all that was compared by its whole state so far."""

    round: Round
    drawn_steps: int
    dispatched_pct: float | None


@dataclass(frozen=True)
class Ended(Event):
    """There are no more laps; why: width or budget."""

    by: str | None

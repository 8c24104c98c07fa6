"""What the processes of `bench-prep run` send: the timing process, and one for each arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_prep.child.channel import Event
from bench_prep.measure.records import Clock, Round, Samples
from bench_prep.measure.state import MachineState, Span
from bench_prep.measure.stopping import StoppedBy


@dataclass(frozen=True)
class Floor(Event):
    """One launch of a tiny kernel by each clock (`clocks.launch_floor`)."""

    ns: dict[Clock, int]


@dataclass(frozen=True)
class OnlyInCandidate(Event):
    """Attributes that only the candidate's classes have, and so are not compared."""

    paths: list[str]


@dataclass(frozen=True)
class Equal(Event):
    """The proof before any timing: steps, block boundaries among them, and the run's seed."""

    steps: int
    boundaries: int
    seed: int


@dataclass(frozen=True)
class ClockCost(Event):
    """What each clock shows of an empty step (`clocks.clock_cost`)."""

    ns: dict[Clock, int]


@dataclass(frozen=True)
class Timed(Event):
    """A finished round, with all that was compared so far.

    `drawn_steps`: by their whole state; `checked_steps`: timed ones, by what they wrote.
    """

    round: Round
    span: Span | None
    dispatched_pct: float | None
    slices: int | None
    drawn_steps: int
    checked_steps: int


@dataclass(frozen=True)
class Stopped(Event):
    """There are no more rounds; why."""

    by: StoppedBy | None


@dataclass(frozen=True)
class Ready(Event):
    """An arm's runner is there."""

    environment: dict[str, Any]
    last_position: int


@dataclass(frozen=True)
class Digests(Event):
    """Of all that can be compared: a digest or the text of it, what moved, and what shares memory.

    `position` is that of a step in a timed slice.
    """

    digests: dict[str, str]
    moved: list[str]
    memory: dict[str, int]
    position: int | None = None


@dataclass(frozen=True)
class Slice(Event):
    """One timed slice of an arm: times, what disturbed them, and what its steps left.

    `checked` are those compared by their whole state; `digests` are of every step's sums, by
    buffer; `processor_ns` is the process's time for so many `counted` steps (`effort`).
    """

    samples: Samples
    disturbances: dict[str, int]
    checked: list[Digests]
    digests: dict[str, str]
    processor_ns: int
    counted: int


@dataclass(frozen=True)
class StepSums(Event):
    """Of one buffer, after each step of the last slice."""

    steps: list[tuple[int, int]]


@dataclass(frozen=True)
class Machine(Event):
    """The machine's state, between slices."""

    state: MachineState


@dataclass(frozen=True)
class Located(Event):
    """Where two states differ, in words."""

    difference: str


@dataclass(frozen=True)
class Obeyed(Event):
    """A command without an answer was carried out."""

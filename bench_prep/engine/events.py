"""What the process of a timed engine sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_prep.child.channel import Event
from bench_prep.measure.records import Round
from bench_prep.measure.state import Span
from bench_prep.measure.stopping import StoppedBy


@dataclass(frozen=True)
class Loaded(Event):
    """The engine is there: its environment columns, and its runner's shape as settings."""

    environment: dict[str, Any]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Compared(Event):
    """So many steps were prepared by both paths, and left the same."""

    steps: int


@dataclass(frozen=True)
class Rounds(Event):
    """Finished rounds, and the machine around each."""

    rounds: list[Round]
    spans: list[Span]


@dataclass(frozen=True)
class Stopped(Event):
    """There are no more rounds; why."""

    by: StoppedBy

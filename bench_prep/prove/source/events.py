"""What the process of `prove source` sends, after `decode.events.Imported`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_prep.child.channel import Event


@dataclass(frozen=True)
class Begun(Event):
    """The environment columns, the source's fingerprint, and the settings that will be walked.

    `admitted`: the source is unknown, and admitted for this proof.
    """

    environment: dict[str, Any]
    fingerprint: str
    variants: list[str]
    admitted: bool


@dataclass(frozen=True)
class Progress(Event):
    """Steps so far, and those by the fast path among them."""

    variant: str
    steps: int
    dispatched: int


@dataclass(frozen=True)
class Proven(Event):
    """All steps left the same: `traces.Totals`, what was never done, seconds, the known entry."""

    totals: dict[str, Any]
    missing: list[str]
    seconds: float
    entry: dict[str, Any] | None

"""The building block of every view."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A titled table of texts and the sentences below it; either may be empty.

    The first `left` columns are aligned to the left, the others to the right.
    """

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left: int = 1
    notes: tuple[str, ...] = ()

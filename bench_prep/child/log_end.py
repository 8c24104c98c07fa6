"""What the log of a process says at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: The last lines of a log that an error shows, and the longest of them.
_LINES_SHOWN, _WIDTH = 8, 200


def lines_of(log: Path) -> list[str]:
    """The lines of a log that have something in them; none where it cannot be read."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def end_of(log: Path, marks: Sequence[str] = ()) -> str:
    """The end of a log, for a message: its last lines with one of the `marks`, or its last ones."""
    lines = lines_of(log)
    told = [line for line in lines if any(mark in line for mark in marks)]
    shown = "".join(f"\n    {line[:_WIDTH]}" for line in (told or lines)[-_LINES_SHOWN:])
    return f"the end of its log {log}:{shown or ' it is empty'}"

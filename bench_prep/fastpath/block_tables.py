"""Dirty tracking of vLLM's block tables: a commit of a clean row returns at once.

A table is clean while row 0 of its device side, the only row of a single-request step, holds what
the host's row 0 holds. Nothing is promised of the rows behind it, because vLLM writes them on the
device without a method that could be marked (the padding of CUDA graphs), so that a commit of
several rows always copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Every method of vLLM's `BlockTable` that writes host rows. Each is a first line of defence,
#: unless `SECOND_LINE` says why no step is known that needs its mark. `clear` writes both sides
#: alike and leaves a clean table clean.
MARKING_METHODS = ("append_row", "add_row", "move_row", "swap_row", "clear_row")
SECOND_LINE = {
    "add_row": "writes through append_row, which marks",
    "move_row": "the row moved to was cleared in the same step, which marks",
    "swap_row": "vLLM swaps requests only in steps of several, whose commit always copies",
}


class Marks:
    """What is heard of all tables and buffers of a runner.

    Attributes:
        fixed: the buffers hold what every single-token step of one request leaves alike. True from
            one dispatched step to the next, as only the preparation and dummy runs write them.
        stale: a step has more to write than its own: the fixed part, or a table that is dirty.
    """

    __slots__ = ("fixed", "stale")

    def __init__(self) -> None:
        self.fixed = False
        self.stale = True

    def written(self) -> None:
        """Something else than a dispatched step wrote, or may have written, the buffers."""
        self.fixed = False
        self.stale = True


class TrackedTable:
    """Tracks one vLLM `BlockTable` by wrapping the methods of that instance."""

    __slots__ = ("_below", "_commit", "_marks", "_put_back", "attached", "dirty", "table")

    def __init__(self, table: Any, marks: Marks) -> None:
        self.table = table
        self.dirty = self.attached = True
        self._marks = marks
        self._commit: Callable[[int], None] = table.commit_block_table
        # Another tracker, which the commit passes through.
        self._below = tracker_of(self._commit)
        wrappers: dict[str, Any] = {
            name: self._marking(getattr(table, name)) for name in MARKING_METHODS
        }
        wrappers["commit_block_table"] = self.commit
        # What was there before: another tracker's wrappers, of which it must not be robbed.
        self._put_back = {
            name: (wrapper, vars(table).get(name)) for name, wrapper in wrappers.items()
        }
        vars(table).update(wrappers)

    def commit(self, num_reqs: int) -> None:
        """Copy the first `num_reqs` rows to the device, unless it is one row that is there."""
        if self.dirty or num_reqs > 1 or not self.attached:
            self._commit(num_reqs)
            self.dirty = False

    def mark(self) -> None:
        """Something else wrote a row 0: the next commit copies."""
        self.dirty = self._marks.stale = True
        if self._below is not None:
            self._below.mark()

    def _marking(self, method: Callable[..., None]) -> Callable[..., None]:
        def marked(*args: Any, **kwargs: Any) -> None:
            self.mark()
            method(*args, **kwargs)

        marked.tracker = self  # type: ignore[attr-defined]
        return marked

    def detach(self) -> None:
        """Give the table back what it had, unless something else has wrapped it since.

        What a tracker detached before has left there, as another one had wrapped it, goes too.
        """
        self.attached = False
        own = vars(self.table)
        for name, (wrapper, before) in self._put_back.items():
            if own.get(name) is wrapper:
                while (below := tracker_of(before)) is not None and not below.attached:
                    before = below._put_back[name][1]
                if before is None:
                    del own[name]
                else:
                    own[name] = before


def tracker_of(value: Any) -> TrackedTable | None:
    """The tracker whose wrapper this is, or None."""
    tracker = getattr(value, "tracker", getattr(value, "__self__", None))
    if type(tracker) is not TrackedTable:
        return None
    return tracker if any(value is wrapper for wrapper, _ in tracker._put_back.values()) else None

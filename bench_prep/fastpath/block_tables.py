"""Dirty tracking of vLLM's block tables: a commit of a clean table returns at once.

A table is clean while its device rows below `committed` hold what its host rows hold. Whatever
writes a host row marks it dirty; the next commit copies as vLLM does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Every method of vLLM's `BlockTable` that writes host rows.
MARKING_METHODS = ("append_row", "add_row", "move_row", "swap_row", "clear_row")


class TrackedTable:
    """Tracks one vLLM `BlockTable` by wrapping the methods of that instance."""

    __slots__ = ("_commit", "committed", "dirty", "table")

    def __init__(self, table: Any) -> None:
        self.table = table
        self.dirty = True
        self.committed = 0
        self._commit: Callable[[int], None] = table.commit_block_table
        for name in MARKING_METHODS:
            setattr(table, name, self._marking(getattr(table, name)))
        table.clear = self._clearing(table.clear)
        table.commit_block_table = self.commit

    def commit(self, num_reqs: int) -> None:
        """Copy the first `num_reqs` rows to the device, unless they are there already."""
        if self.dirty or num_reqs > self.committed:
            self._commit(num_reqs)
            self.dirty = False
            self.committed = num_reqs

    def mark(self) -> None:
        """Something else wrote the device's rows: the next commit copies."""
        self.dirty = True
        self.committed = 0

    def _marking(self, method: Callable[..., None]) -> Callable[..., None]:
        def marked(*args: Any, **kwargs: Any) -> None:
            self.dirty = True
            method(*args, **kwargs)

        return marked

    def _clearing(self, method: Callable[[], None]) -> Callable[[], None]:
        def cleared() -> None:
            method()  # zeroes both sides
            self.dirty = False
            self.committed = self.table.max_num_reqs

        return cleared

    def detach(self) -> None:
        """Give the table its own methods back."""
        for name in (*MARKING_METHODS, "clear", "commit_block_table"):
            self.table.__dict__.pop(name, None)

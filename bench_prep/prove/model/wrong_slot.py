"""The control of a proof: one wrong KV slot must change the outputs."""

from __future__ import annotations

from typing import Any


class WrongSlot:
    """The fast path, wrong once in one slot of one KV group.

    At the first token of a new block the slot still lies in the block before: the mistake of a
    block table that is updated one step late.
    """

    def __init__(self, runner: Any, group: int) -> None:
        self._runner = runner
        self._path = runner._prepare_inputs
        self._table = runner.input_batch.block_table[group]
        self._planted_at: int | None = None
        runner._prepare_inputs = self

    def __call__(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        dispatched = self._path.dispatched
        result = self._path(scheduler_output, num_scheduled_tokens)
        if self._planted_at is None and self._path.dispatched > dispatched:
            position = int(self._runner.input_batch.num_computed_tokens_cpu[0])
            block, offset = divmod(position, int(self._table.block_size))
            if offset == 0:
                before = self._table.block_table.gpu[0, block - 1]
                self._table.slot_mapping.gpu[0] = before * int(self._table.block_size)
                self._planted_at = position
        return result

    def remove(self) -> int | None:
        """Give the runner the right fast path back; the position that was wrong, if any."""
        self._runner._prepare_inputs = self._path
        return self._planted_at

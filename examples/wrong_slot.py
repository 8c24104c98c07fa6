"""A candidate that is wrong in one KV slot, to see it caught before anything is timed.

    bench-prep run --candidate examples/wrong_slot.py:attach

With the first token of a new block, and only then, the slot of the first KV group still lies in
the block before: the mistake of a block table that is updated one step late. Such a service
writes fluent, wrong text. The run ends with exit code 3 and names buffer, index, expected and
found. `same_path.py` describes what a candidate is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attach(runner: Any) -> Callable[[Any, Any], Any]:
    """vLLM's own preparation, then the mistake."""
    own_path = runner._prepare_inputs
    computed = runner.input_batch.num_computed_tokens_cpu
    table = runner.input_batch.block_table[0]
    size = table.block_size

    def prepare(scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        result = own_path(scheduler_output, num_scheduled_tokens)
        block, offset = divmod(int(computed[0]), size)
        if offset == 0 and block > 0:
            table.slot_mapping.gpu[0] = table.block_table.gpu[0, block - 1] * size
        return result

    return prepare

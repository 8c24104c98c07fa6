"""What a decode step of one request leaves for the forward pass, for the tricks."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def outputs(runner: Any) -> list[Tensor]:
    """Token id, position, lengths and slots: one element each."""
    tables = runner.input_batch.block_table.block_tables
    return [
        runner.input_ids.gpu[:1],
        runner.input_ids.cpu[:1],
        runner.positions[:1],
        runner.seq_lens[:1],
        runner.optimistic_seq_lens_cpu[:1],
        runner.num_computed_tokens[:1],
        *(table.slot_mapping.gpu[:1] for table in tables),
    ]

"""The device side of a step on the CPU platform: the kernel's writes, made on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench_prep.fastpath.targets import PAD_SLOT_ID, Targets, memory


class HostWriter:
    """Writes what has no mirror: `positions`, lengths and the KV slots (see `Mirrors`)."""

    __slots__ = ("_computed", "_groups", "_lengths", "_no_lengths", "_no_slots", "_positions")

    def __init__(self, targets: Targets) -> None:
        self._positions = memory(targets.positions.numpy())
        self._lengths = memory(targets.seq_lens.numpy())
        self._no_lengths = memory(np.zeros_like(targets.seq_lens.numpy()))
        self._computed = memory(targets.num_computed_tokens.numpy())
        self._groups = [
            (
                memory(group.block_table.numpy()[0]),
                memory(group.slot_mapping.numpy()),
                group.block_size,
            )
            for group in targets.groups
            if group.slot_mapping is not None
        ]
        no_slots = np.full(targets.max_num_tokens, PAD_SLOT_ID, dtype=np.int64)
        self._no_slots = memory(no_slots) if targets.pads_slots else None

    def write_fixed(self) -> None:
        """Write what every single-token step of one request leaves alike."""
        self._lengths[:] = self._no_lengths
        if self._no_slots is not None:
            for _, slots, _ in self._groups:
                slots[:] = self._no_slots

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        """Same arguments as the device's launch; the token itself is already mirrored."""
        self._positions[0] = position
        self._lengths[0] = position + 1
        self._computed[0] = position
        for table, slots, block_size in self._groups:
            slots[0] = table[position // block_size] * block_size + position % block_size

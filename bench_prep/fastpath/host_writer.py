"""The device side of a step on the CPU platform: the kernel's writes, made on the host."""

from __future__ import annotations

from typing import Any

from bench_prep.fastpath.targets import PAD_SLOT_ID, Targets


class HostWriter:
    """Writes what has no mirror: `positions`, lengths and the KV slots (see `Mirrors`)."""

    __slots__ = ("_computed", "_groups", "_lengths", "_positions")

    def __init__(self, targets: Targets) -> None:
        self._positions = targets.positions.numpy()
        self._lengths = targets.seq_lens.numpy()
        self._computed = targets.num_computed_tokens.numpy()
        self._groups = [
            (
                group.block_table.numpy()[0],
                group.slot_mapping.numpy(),
                group.block_size,
                targets.pads_slots,
            )
            for group in targets.groups
            if group.slot_mapping is not None
        ]

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        """Same arguments as the device's launch; the token itself is already mirrored."""
        self._positions[0] = position
        lengths = self._lengths
        lengths.fill(0)
        lengths[0] = position + 1
        self._computed[0] = position
        for table, slots, block_size, pads in self._groups:
            if pads:
                slots.fill(PAD_SLOT_ID)
            block, offset = divmod(position, block_size)
            slots[0] = table.item(block) * block_size + offset

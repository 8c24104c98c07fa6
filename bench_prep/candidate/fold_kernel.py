"""The sums of `fold`, of buffers on a device: one launch a step, a program for each buffer."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

#: Words that one program reads at a time.
_CHUNK = 1024
#: Entries of the table for each buffer: its address, how many words it has, and bytes of a word.
_ENTRIES = tl.constexpr(3)


@triton.jit(do_not_specialize=["step"])
def fold_kernel(table, factors, sums, step, CHUNK: tl.constexpr):
    """Write the sum of each buffer's words times their factors into row `step` of `sums`."""
    buffer = tl.program_id(0)
    entry = table + buffer * _ENTRIES
    address = tl.load(entry)
    count = tl.load(entry + 1)
    width = tl.load(entry + 2)
    total = tl.zeros((CHUNK,), tl.int64)
    for start in range(0, count, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        there = offsets < count
        if width == 4:
            words = address.to(tl.pointer_type(tl.int32), bitcast=True)
            values = tl.load(words + offsets, mask=there, other=0).to(tl.int64)
        else:
            small = address.to(tl.pointer_type(tl.uint8), bitcast=True)
            values = tl.load(small + offsets, mask=there, other=0).to(tl.int64)
        total += values * tl.load(factors + offsets, mask=there, other=0)
    row = sums + step.to(tl.int64) * tl.num_programs(0)
    tl.store(row + buffer, tl.sum(total, axis=0))


class DeviceSums:
    """The sums of these buffers, and last one of what the preparations returned.

    Attributes:
        longest: words of the longest buffer.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], returned: int) -> None:
        """`returned`: of what a preparation returned so many tensors, and elements of each."""
        device = buffers[0].device
        self._returned = torch.zeros(returned, returned, dtype=torch.int64, device=device)
        self._buffers = [*buffers, self._returned]  # alive: the table has their addresses
        entries = [
            [one.data_ptr(), one.nbytes // width, width]
            for one in self._buffers
            for width in (1 if (one.nbytes | one.data_ptr()) % 4 else 4,)
        ]
        self._table = torch.tensor(entries, dtype=torch.int64).to(device)
        self.longest = max(count for _, count, _ in entries)

    def begin(self, factors: np.ndarray[Any, Any], steps: int) -> None:
        """Before a slice of so many steps; int64 `factors`, at least `longest`."""
        device = self._table.device
        self._factors = torch.from_numpy(factors).to(device)
        self._sums = torch.zeros(steps, len(self._buffers), dtype=torch.int64, device=device)

    def add(self, step: int, returned: Sequence[torch.Tensor]) -> None:
        """Queue the fold of the slice's step of this index on the current stream.

        `returned`: the first elements of what the preparation returned, as many as there is room.
        """
        for row, few in zip(self._returned, returned, strict=False):
            row[: len(few)].copy_(few)
        fold_kernel[(len(self._buffers),)](self._table, self._factors, self._sums, step, _CHUNK)

    def sums(self) -> np.ndarray[Any, Any]:
        """A row for each step; waits for the device."""
        return self._sums.cpu().numpy()

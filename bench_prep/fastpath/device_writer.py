"""The device side of a step: the kernel, compiled once and bound to its grid."""

from __future__ import annotations

from typing import Any

import torch
import triton

from bench_prep.fastpath.kernel import address_table, ahead_of_time_source, constants
from bench_prep.fastpath.targets import Targets


class DeviceWriter:
    """Launches the kernel on the current stream of the targets' device."""

    __slots__ = ("_constants", "_current_stream", "_device", "_launch", "_table", "_table_address")

    def __init__(self, targets: Targets) -> None:
        self._table = address_table(targets)
        self._table_address = self._table.data_ptr()
        values = constants(targets)
        self._constants = tuple(values.values())
        # Compiled from a signature instead of from arguments: nothing is assumed about their
        # values, so that one binary serves every step and a launch need not look at them.
        compiled = triton.compile(ahead_of_time_source(values))
        self._launch = compiled[(len(targets.groups), 1, 1)]
        self._device = targets.positions.device.index
        self._current_stream = torch._C._cuda_getCurrentRawStream

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        """Write the step that computes the token at `position`.

        `sampled` is the previous step's sampled token, int32 of shape [1, 1] on the device.
        """
        self._launch(
            self._table_address,
            sampled.data_ptr(),
            position,
            mrope_position,
            *self._constants,
            stream=self._current_stream(self._device),
        )

"""The device side of a step: the launch of the step's kernel."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import triton

from bench_prep.fastpath.kernel import (
    STEP_NUMBERS,
    fixed_constants,
    fixed_source,
    fixed_tensors,
    group_table,
    step_constants,
    step_source,
    step_tensors,
)
from bench_prep.fastpath.launch import Launch
from bench_prep.fastpath.targets import Targets


class DeviceWriter:
    """Launches the kernels on the current stream of the targets' device."""

    __slots__ = ("_compiled", "_fixed", "_groups", "_launch", "_numbers", "_step", "_targets")

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._compiled = _compiling(targets)
        self._groups = group_table(targets)
        self._fixed: Launch | None = None
        self._step: Launch | None = None
        self._numbers = array("q")
        self._launch: Callable[[], None] = lambda: None

    def write_fixed(self) -> None:
        """Write what every single-token step of one request leaves alike."""
        if self._fixed is None:
            self._fixed, self._step = self._load()
            self._numbers, self._launch = self._step.numbers, self._step.run
        self._fixed.run()

    def _load(self) -> tuple[Launch, Launch]:
        targets, groups = self._targets, self._groups
        fixed, step = self._compiled.result()
        programs, device = len(targets.groups), targets.positions.get_device()
        arguments = [0] * STEP_NUMBERS + step_tensors(targets, groups)
        return (
            Launch(fixed, programs, fixed_tensors(targets, groups), device),
            Launch(step, programs, arguments, device),
        )

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        """Write the step that computes the token at `position`, after `write_fixed`.

        `sampled` is the previous step's sampled token, int32 of shape [1, 1] on the device.
        """
        numbers = self._numbers
        numbers[0] = sampled.data_ptr()
        numbers[1] = position
        numbers[2] = mrope_position
        self._launch()


def _compiling(targets: Targets) -> Future[list[Any]]:
    """The two kernels, compiled beside vLLM's own start, which they would delay by a second.

    They are compiled from signatures instead of from arguments: nothing is assumed about their
    values.
    """
    sources = [fixed_source(fixed_constants(targets)), step_source(step_constants(targets))]
    # Another thread's current device need not be this one's.
    target = triton.runtime.driver.active.get_current_target()
    executor = ThreadPoolExecutor(1, "bench-prep-compile")
    future = executor.submit(lambda: [triton.compile(s, target=target) for s in sources])
    executor.shutdown(wait=False)
    return future

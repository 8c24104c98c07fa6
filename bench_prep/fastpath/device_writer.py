"""The device side of a step: the kernel, captured once as a graph and replayed every step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import triton

from bench_prep.fastpath.kernel import (
    MROPE_POSITION,
    POSITION,
    SAMPLED_ADDRESS,
    ahead_of_time_source,
    arguments,
    constants,
    group_table,
)
from bench_prep.fastpath.targets import Targets, memory


class DeviceWriter:
    """Replays the kernel on the current stream of the targets' device.

    A replay costs the host a fraction of a launch, because there is nothing to pass: the kernel
    reads the step's numbers from pinned host memory. Overwriting them is as safe as overwriting
    vLLM's own pinned buffers: `synchronize_input_prep` waits, before a step's preparation, until
    the previous step's has been done by the device.

    The replay is the driver's own call, made without giving up the interpreter lock. Torch's
    replay gives it up; inside an engine the output threads take it then, and getting it back costs
    more than the rest of the preparation.
    """

    __slots__ = (
        "_compiled",
        "_constants",
        "_device",
        "_executable",
        "_graph",
        "_groups",
        "_launch",
        "_numbers",
        "_pinned",
        "_targets",
    )

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._constants = constants(targets)
        self._compiled = _compiling(self._constants)
        self._groups = group_table(targets)
        self._pinned = torch.zeros(3, dtype=torch.int64, pin_memory=True)
        self._numbers = memory(self._pinned.numpy())
        self._graph: Any = None
        self._executable = 0
        self._launch = _driver_launch()
        self._device = targets.positions.get_device()

    def write_fixed(self) -> None:
        """Capture the launch, the first time; the kernel writes all in every step."""
        if self._graph is None:
            self._capture()

    def _capture(self) -> None:
        """Capturing does not run the kernel, so the runner's buffers stay as they are.

        What `torch.cuda.graph` does beyond it, collecting garbage and emptying the allocator's
        cache, would delay the service's first step, and nothing is allocated here.
        """
        targets = self._targets
        launch = self._compiled.result()[(len(targets.groups), 1, 1)]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(targets.positions.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                launch(
                    *arguments(targets, self._pinned, self._groups),
                    *self._constants.values(),
                    stream=stream.cuda_stream,
                )
            finally:
                graph.capture_end()
        self._executable = graph.raw_cuda_graph_exec()
        self._graph = graph

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        """Write the step that computes the token at `position`.

        `sampled` is the previous step's sampled token, int32 of shape [1, 1] on the device.
        """
        numbers = self._numbers
        numbers[SAMPLED_ADDRESS] = sampled.data_ptr()
        numbers[POSITION] = position
        numbers[MROPE_POSITION] = mrope_position
        if self._launch(self._executable, _current_stream(self._device)):
            raise RuntimeError("the driver refused the launch")


def _compiling(values: dict[str, int | bool]) -> Future[Any]:
    """The kernel, compiled beside vLLM's own start, which it would delay by half a second.

    It is compiled from a signature instead of from arguments: nothing is assumed about their
    values.
    """
    source = ahead_of_time_source(values)
    # Another thread's current device need not be this one's.
    target = triton.runtime.driver.active.get_current_target()
    executor = ThreadPoolExecutor(1, "bench-prep-compile")
    future = executor.submit(triton.compile, source, target=target)
    executor.shutdown(wait=False)
    return future


_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", int)


def _driver_launch() -> Callable[[int, int], int]:
    """`cuGraphLaunch(executable, stream)`, which returns 0, or its HIP counterpart."""
    hip = torch.version.hip is not None
    library = ctypes.PyDLL("libamdhip64.so" if hip else "libcuda.so.1")
    launch = library.hipGraphLaunch if hip else library.cuGraphLaunch
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    launch.restype = ctypes.c_int
    return launch

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
    fixed_constants,
    fixed_source,
    fixed_tensors,
    group_table,
    step_constants,
    step_source,
    step_tensors,
)
from bench_prep.fastpath.targets import Targets, memory


class DeviceWriter:
    """Replays the step's kernel on the current stream of the targets' device.

    A replay costs the host less than a launch, because there is nothing to pass: the kernel
    reads the step's numbers from pinned host memory. Overwriting them is as safe as overwriting
    vLLM's own pinned buffers: `synchronize_input_prep` waits, before a step's preparation, until
    the previous step's has been done by the device.

    The replay is the driver's own call, made without giving up the interpreter lock. Torch's
    replay gives it up; inside an engine the output threads take it then, and getting it back costs
    more than the rest of the preparation. `docs/designs.md` has the others, and what each takes.

    Attributes:
        write: write the step that computes the token at a position, after `write_fixed`. Its
            arguments are the position, the M-RoPE position, and the previous step's sampled
            token, int32 of shape [1, 1] on the device.
    """

    __slots__ = (
        "_compiled",
        "_device",
        "_executable",
        "_graph",
        "_groups",
        "_pinned",
        "_targets",
        "write",
    )

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._compiled = _compiling(targets)
        self._groups = group_table(targets)
        self._pinned = torch.zeros(3, dtype=torch.int64, pin_memory=True)
        self._device = targets.positions.get_device()
        self._graph: Any = None
        self._executable = 0
        self.write: Callable[[int, int, Any], None] = self._writing()

    def write_fixed(self) -> None:
        """Write what every single-token step of one request leaves alike."""
        if self._graph is None:
            self._capture()
        targets = self._targets
        self._launch(
            self._compiled.result()[0],
            [*fixed_tensors(targets, self._groups), *fixed_constants(targets).values()],
            _current_stream(self._device),
        )

    def _launch(self, compiled: Any, arguments: list[Any], stream: int) -> None:
        compiled[(len(self._targets.groups), 1, 1)](*arguments, stream=stream)

    def _capture(self) -> None:
        """Capturing does not run the kernel, so the runner's buffers stay as they are.

        What `torch.cuda.graph` does beyond it, collecting garbage and emptying the allocator's
        cache, would delay the service's first step, and nothing is allocated here.
        """
        targets = self._targets
        arguments = [self._pinned, *step_tensors(targets, self._groups)]
        compiled = self._compiled.result()[1]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._launch(
                    compiled, [*arguments, *step_constants(targets).values()], stream.cuda_stream
                )
            finally:
                graph.capture_end()
        self._executable = graph.raw_cuda_graph_exec()
        self._graph = graph

    def _writing(self) -> Callable[[int, int, Any], None]:
        numbers, device = memory(self._pinned.numpy()), self._device
        launch, current_stream = _driver_launch(), _current_stream

        def write(position: int, mrope_position: int, sampled: Any) -> None:
            numbers[SAMPLED_ADDRESS] = sampled.data_ptr()
            numbers[POSITION] = position
            numbers[MROPE_POSITION] = mrope_position
            if launch(self._executable, current_stream(device)):
                raise RuntimeError("the driver refused the launch")

        return write


def _compiling(targets: Targets) -> Future[list[Any]]:
    """The two kernels, compiled beside vLLM's own start, which they would delay.

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


_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", int)


def _driver_launch() -> Callable[[int, int], int]:
    """`cuGraphLaunch(executable, stream)`, which returns 0, or its HIP counterpart."""
    hip = torch.version.hip is not None
    library = ctypes.PyDLL("libamdhip64.so" if hip else "libcuda.so.1")
    launch = library.hipGraphLaunch if hip else library.cuGraphLaunch
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    launch.restype = ctypes.c_int
    return launch

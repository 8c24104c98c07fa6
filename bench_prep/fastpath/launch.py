"""A compiled kernel with its arguments, launched by the driver's own call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

#: Null pointers behind the arguments: Triton gives its kernels scratch memory there, which these
#: need not, and the driver reads as many arguments as the kernel has.
_SCRATCH_POINTERS = 4


class Launch:
    """One kernel with its arguments, numbers of 64 bits: `run()` launches it.

    It runs on the device's current stream. The driver copies the arguments when it is called, so
    that they may be changed as soon as the call has returned.

    The call keeps the interpreter lock. Torch's and Triton's give it up; inside an engine the
    output threads take it then, and getting it back costs more than the rest of the preparation.

    Attributes:
        numbers: the arguments, to be changed between calls.
        run: launches; raises RuntimeError when the driver refuses.

    Raises:
        AttributeError, OSError: the driver lacks the call.
    """

    __slots__ = ("_keep", "numbers", "run")

    def __init__(
        self, compiled: Any, programs: int, arguments: Sequence[int | torch.Tensor], device: int
    ) -> None:
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        self.numbers = array("q", values + [0] * _SCRATCH_POINTERS)
        first, count = self.numbers.buffer_info()
        pointers = (ctypes.c_void_p * count)(*(first + 8 * index for index in range(count)))
        self._keep = (compiled, arguments, pointers)
        call = _cuda_call if torch.version.hip is None else _hip_call
        self.run: Callable[[], None] = call(compiled, programs, ctypes.addressof(pointers), device)


_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", int)


class _Configuration(ctypes.Structure):
    """The driver's `CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def _loaded(compiled: Any, device: int) -> tuple[int, int, int]:
    """The driver's handle of the kernel, threads of a program, bytes of its shared memory.

    Triton itself would compile a launcher in C besides, in the service's first step.
    """
    metadata = compiled.metadata
    load = triton.runtime.driver.active.utils.load_binary
    handle: int = load(compiled.name, compiled.kernel, metadata.shared, device)[1]
    return handle, metadata.num_warps * metadata.target.warp_size, metadata.shared


def _cuda_call(compiled: Any, programs: int, arguments: int, device: int) -> Callable[[], None]:
    """`cuLaunchKernelEx`, which has the fewest arguments to convert."""
    call = ctypes.PyDLL("libcuda.so.1").cuLaunchKernelEx
    call.argtypes = [ctypes.c_void_p] * 4
    call.restype = ctypes.c_int
    function, threads, shared = _loaded(compiled, device)
    configuration = _Configuration((programs, 1, 1), (threads, 1, 1), shared)
    where = ctypes.addressof(configuration)

    def run() -> None:
        configuration.stream = _current_stream(device)
        if call(where, function, arguments, None):
            raise RuntimeError("the driver refused the launch")

    return run


def _hip_call(compiled: Any, programs: int, arguments: int, device: int) -> Callable[[], None]:
    """`hipModuleLaunchKernel`, which every version of HIP has."""
    call = ctypes.PyDLL("libamdhip64.so").hipModuleLaunchKernel
    number, pointer = ctypes.c_uint, ctypes.c_void_p
    call.argtypes = [pointer, *[number] * 7, *[pointer] * 3]
    call.restype = ctypes.c_int
    function, threads, shared = _loaded(compiled, device)
    shape = (programs, 1, 1, threads, 1, 1, shared)

    def run() -> None:
        if call(function, *shape, _current_stream(device), arguments, None):
            raise RuntimeError("the driver refused the launch")

    return run

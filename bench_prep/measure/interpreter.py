"""What makes this Python interpreter, and the libraries in it, slower than others."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Iterator

#: Variables that make each call to the device wait or be watched, or each kernel slow.
_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for the device",
    "HIP_LAUNCH_BLOCKING": "every launch waits for the device",
    "AMD_SERIALIZE_KERNEL": "every launch waits for the device",
    "CUDA_INJECTION64_PATH": "a profiler is attached to CUDA",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver",
    "TRITON_DEBUG": "Triton's kernels check their accesses",
    "TRITON_INTERPRET": "Triton's kernels are interpreted",
}
_OFF = ("", "0")


def slowed_by() -> tuple[str, ...]:
    """Each thing that is on now and slows what is timed, as a short text."""
    return tuple(_slowed_by())


def _slowed_by() -> Iterator[str]:
    for name, function in (("trace", sys.gettrace()), ("profile", sys.getprofile())):
        if function is not None:
            yield f"a Python {name} function of {_module(function)}"
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    if monitoring is not None:
        tools = (monitoring.get_tool(number) for number in range(6))
        yield from (f"sys.monitoring by {tool}" for tool in tools if tool is not None)
    if getattr(sys, "is_stack_trampoline_active", bool)():
        yield "Python's trampoline for perf"
    if tracemalloc.is_tracing():
        yield "tracemalloc"
    if sys.flags.dev_mode:
        yield "Python's development mode"
    if hasattr(sys, "gettotalrefcount"):
        yield "a debug build of Python"
    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.is_anomaly_enabled():
            yield "torch's anomaly detection"
        if torch.are_deterministic_algorithms_enabled():
            yield "torch's deterministic algorithms"
        if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
            yield "torch's profiler"
    for name, effect in _VARIABLES.items():
        if os.environ.get(name, "") not in _OFF:
            yield f"{name}: {effect}"


def _module(function: object) -> str:
    """Where a trace function comes from: `coverage.tracer`, `pdb`."""
    return getattr(function, "__module__", None) or type(function).__module__

"""What else ran inside timed steps: compilers, the garbage collector, the device's allocator.

All of it belongs into the warm-up. It is counted from what compilers, interpreter and allocator
count themselves, read before the first and after the last timed step and never within one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol


class Allocates(Protocol):
    """A device whose memory torch takes from the driver and keeps."""

    def allocations(self) -> int:
        """How often memory was taken from the driver or given back to it so far."""


@dataclass
class Disturbances:
    """How often timed steps were disturbed.

    Attributes:
        compilations: kernels that Triton compiled or loaded, and frames that torch compiled.
        collections: runs of Python's garbage collector.
        allocations: device or pinned memory taken from the driver or given back to it; memory
            that torch's caching allocator already has is not among it.
    """

    compilations: int = 0
    collections: int = 0
    allocations: int = 0

    @contextmanager
    def counted(self, device: Allocates | None) -> Iterator[None]:
        """Add what happens inside the context."""
        with _triton_compilations() as compiled:
            before = self._so_far(compiled, device)
            yield
            after = self._so_far(compiled, device)
        self.add(*(now - then for now, then in zip(after, before, strict=True)))

    def add(self, compilations: int = 0, collections: int = 0, allocations: int = 0) -> None:
        """Add what was counted elsewhere."""
        self.compilations += compilations
        self.collections += collections
        self.allocations += allocations

    @staticmethod
    def _so_far(compiled: list[None], device: Allocates | None) -> tuple[int, int, int]:
        return (
            len(compiled) + _torch_compilations(),
            sum(generation["collections"] for generation in gc.get_stats()),
            0 if device is None else device.allocations(),
        )

    def texts(self) -> tuple[str, ...]:
        """What happened, one text each."""
        return tuple(
            text
            for count, text in (
                (self.compilations, "kernels were compiled or loaded"),
                (self.collections, "the garbage collector ran"),
                (self.allocations, "device memory was taken from or given back to the driver"),
            )
            if count
        )

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@contextmanager
def _triton_compilations() -> Iterator[list[None]]:
    """One entry for each kernel that is compiled, or loaded from Triton's cache on the disk.

    By `triton.knobs.compilation.listener`; before Triton 3.4, which has no such thing, by
    `JITFunction.cache_hook`. Whoever listens already still hears everything.
    """
    seen: list[None] = []
    knobs = sys.modules.get("triton.knobs")
    jit = sys.modules.get("triton.runtime.jit")
    if knobs is not None:
        owner, name = knobs.compilation, "listener"
    elif jit is not None:
        owner, name = jit.JITFunction, "cache_hook"
    else:
        yield seen  # not even imported
        return
    before: Callable[..., Any] | None = getattr(owner, name)

    def listen(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        return None if before is None else before(*args, **kwargs)

    setattr(owner, name, listen)
    try:
        yield seen
    finally:
        setattr(owner, name, before)


def _torch_compilations() -> int:
    """How many frames `torch.compile` has compiled so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["total"])

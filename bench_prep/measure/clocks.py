"""One timed block: host, ready and device time of every step of one arm.

A step has three parts, of which only `call` is timed. Nothing here knows what a step does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Protocol

from bench_prep.measure.records import Clock


class Steps(Protocol):
    """What can be timed: a sequence of steps that can be started again from its beginning."""

    def restart(self) -> None:
        """Go back to the first step; untimed."""

    def before(self) -> None:
        """All that precedes the timed part of a step."""

    def call(self) -> Any:
        """The timed part."""

    def after(self) -> None:
        """All that follows the timed part of a step."""


class Device(Protocol):
    """A device whose own time can be measured from events."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def hold(self, nanoseconds: int) -> None:
        """Keep the device busy for about so long, so that what follows is queued behind it."""

    def event(self) -> Any:
        """A new timing event with `record()` and `elapsed_time(later)` in milliseconds."""


def time_block(
    steps: Steps, *, warmup: int, iters: int, device: Device | None
) -> dict[Clock, list[int]]:
    """Time `iters` steps after `warmup` untimed ones; nanoseconds per clock and step.

    Host and ready time come from one pass: the device is idle when a step's call begins, host
    time ends when the call returns, ready time when the device has finished. Device time comes
    from a second pass over the same steps, in which the device is held busy until the call has
    returned: the events then enclose what the device does, not its waiting for the host. A call
    that itself waits for the device lets it run idle, which is then part of its device time.
    Without a device, ready time is host time and there is no device time.
    """
    with _quiet_interpreter():
        samples = _host_and_ready(steps, warmup, iters, device)
        if device is not None:
            hold = 2 * int(median(samples["host"])) + 100_000
            samples["device"] = _device(steps, warmup, iters, device, hold)
    return samples


def _nothing() -> None:
    pass


def _host_and_ready(
    steps: Steps, warmup: int, iters: int, device: Device | None
) -> dict[Clock, list[int]]:
    synchronize: Callable[[], None] = _nothing if device is None else device.synchronize
    now = time.perf_counter_ns
    host, ready = [0] * iters, [0] * iters
    steps.restart()
    for index in range(-warmup, iters):
        steps.before()
        synchronize()
        start = now()
        steps.call()
        returned = now()
        synchronize()
        finished = now()
        steps.after()
        if index >= 0:
            host[index] = returned - start
            ready[index] = finished - start
    return {"host": host, "ready": host if device is None else ready}


def _device(steps: Steps, warmup: int, iters: int, device: Device, hold: int) -> list[int]:
    times = [0] * iters
    first, last = device.event(), device.event()
    steps.restart()
    for index in range(-warmup, iters):
        steps.before()
        device.synchronize()
        device.hold(hold)
        first.record()
        steps.call()
        last.record()
        device.synchronize()
        steps.after()
        if index >= 0:
            times[index] = round(first.elapsed_time(last) * 1e6)
    return times


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """Keep the garbage collector out of the timed steps."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CudaDevice:
    """A CUDA or ROCm device, through torch."""

    def __init__(self, index: int = 0) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._index = index
        self._cycles_per_ns = self._calibrate()

    def synchronize(self) -> None:
        self._cuda.synchronize(self._index)

    def hold(self, nanoseconds: int) -> None:
        self._cuda._sleep(int(nanoseconds * self._cycles_per_ns))

    def event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def _calibrate(self) -> float:
        """Cycles that the device's sleep takes per nanosecond, at its working clock."""
        cycles = 2_000_000
        for _ in range(3):
            first, last = self.event(), self.event()
            first.record()
            self._cuda._sleep(cycles)
            last.record()
            self.synchronize()
        return float(cycles / (first.elapsed_time(last) * 1e6))

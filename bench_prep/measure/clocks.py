"""One timed block: host, ready and device time of every step of one arm.

A step has three parts, of which only `call` is timed. Nothing here knows what a step does. What
the clock itself adds to each time is measured the same way, with steps that do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from resource import RUSAGE_THREAD, getrusage
from statistics import median
from typing import Any, Protocol

from bench_prep.measure.collector import quiet_interpreter
from bench_prep.measure.disturbances import Disturbances
from bench_prep.measure.records import CLOCKS, Block, Clock, Samples


class Steps(Protocol):
    """What can be timed: a sequence of steps that can be started again from its beginning.

    `result` is what the last call returned, set before `after`; to keep it, and to let the one
    before it go, is in no time.
    """

    result: Any

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

    def allocations(self) -> int:
        """How often memory was taken from the driver or given back to it so far."""

    def launch_least(self) -> None:
        """Launch the least that a step can ask of the device: a graph of one tiny kernel."""


def time_block(
    steps: Steps,
    *,
    warmup: int,
    iters: int,
    device: Device | None,
    disturbances: Disturbances | None = None,
) -> Samples:
    """Time `iters` steps after `warmup` untimed ones.

    What disturbs the timed steps is added to `disturbances`.

    Host and ready time come from one pass: the device is idle when a step's call begins, host
    time ends when the call returns, ready time when the device has finished. Device time comes
    from a second pass over the same steps, in which the device is held busy until the call has
    returned: the events then enclose what the device does, not its waiting for the host. A call
    that itself waits for the device lets it run idle, which is then part of its device time.
    Without a device, ready time is host time and there is no device time.
    """
    if disturbances is None:
        disturbances = Disturbances()
    with quiet_interpreter():
        samples = _host_and_ready(steps, warmup, iters, device, disturbances)
        if device is not None:
            hold = 2 * int(median(samples["host"])) + 100_000
            samples["device"] = _device(steps, warmup, iters, device, hold, disturbances)
    return samples


def clock_cost(device: Device | None) -> dict[Clock, int]:
    """What each clock shows for a step that does nothing, in nanoseconds.

    It is in every time of every arm: two readings of the counter and an empty call; for ready time
    a synchronization of the idle device too; for device time two events.
    """
    samples = time_block(_Nothing(), warmup=200, iters=1000, device=device)
    times = Block("candidate", samples)
    return {clock: round(median(times.times(clock))) for clock in CLOCKS if clock in samples}


def launch_floor(device: Device) -> dict[Clock, int]:
    """What each clock shows of one `Device.launch_least`, in nanoseconds, the clock's cost in it.

    Torch replays it; the driver's own call takes about 1 us less (`docs/designs.md`), so a
    preparation that launches by it may come below.
    """
    steps = _Nothing()
    steps.call = device.launch_least  # type: ignore[method-assign]
    times = Block("candidate", time_block(steps, warmup=200, iters=1000, device=device))
    return {clock: round(median(times.times(clock))) for clock in CLOCKS if clock in times.samples}


class _Nothing:
    """Steps that do nothing."""

    result: Any = None

    def restart(self) -> None: ...

    def before(self) -> None: ...

    def call(self) -> None: ...

    def after(self) -> None: ...


def _nothing() -> None: ...


def _host_and_ready(
    steps: Steps, warmup: int, iters: int, device: Device | None, disturbances: Disturbances
) -> Samples:
    synchronize: Callable[[], None] = _nothing if device is None else device.synchronize
    now = time.perf_counter_ns

    def step() -> tuple[int, int, int]:
        steps.before()
        synchronize()
        switches = getrusage(RUSAGE_THREAD).ru_nivcsw
        start = now()
        result = steps.call()
        returned = now()
        synchronize()
        finished = now()
        switches = getrusage(RUSAGE_THREAD).ru_nivcsw - switches
        steps.result = result
        steps.after()
        return returned - start, finished - start, switches

    host, ready, preempted = [0] * iters, [0] * iters, [0] * iters
    steps.restart()
    for _ in range(warmup):
        step()
    with disturbances.counted(device):
        for index in range(iters):
            host[index], ready[index], preempted[index] = step()
    return {"host": host, "ready": host if device is None else ready, "preempted": preempted}


def _device(
    steps: Steps,
    warmup: int,
    iters: int,
    device: Device,
    hold: int,
    disturbances: Disturbances,
) -> list[int]:
    first, last = device.event(), device.event()

    def step() -> int:
        steps.before()
        device.synchronize()
        device.hold(hold)
        first.record()
        result = steps.call()
        last.record()
        device.synchronize()
        steps.result = result
        steps.after()
        nanoseconds: int = round(first.elapsed_time(last) * 1e6)
        return nanoseconds

    times = [0] * iters
    steps.restart()
    for _ in range(warmup):
        step()
    with disturbances.counted(device):
        for index in range(iters):
            times[index] = step()
    return times


#: Counters of torch's allocators that grow when they call the driver, and only then.
_DEVICE_ALLOCATIONS = (
    "segment.all.allocated",
    "segment.all.freed",
    "num_device_alloc",
    "num_device_free",
    "num_alloc_retries",
    "num_ooms",
)
_PINNED_ALLOCATIONS = ("num_host_alloc", "num_host_free")


class CudaDevice:
    """A CUDA or ROCm device, through torch."""

    def __init__(self, index: int = 0) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._least: Any = None
        self._index = index
        self._cycles_per_ns = self._calibrate()

    def synchronize(self) -> None:
        self._cuda.synchronize(self._index)

    def hold(self, nanoseconds: int) -> None:
        self._cuda._sleep(int(nanoseconds * self._cycles_per_ns))

    def event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def launch_least(self) -> None:
        if self._least is None:
            self._least = self._captured()
        self._least.replay()

    def _captured(self) -> Any:
        import torch

        number = torch.zeros(1, device=f"cuda:{self._index}")
        number.add_(1)  # what a first use brings into being is no part of a graph
        self.synchronize()
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            number.add_(1)
        self._number = number  # the graph's memory
        return graph

    def allocations(self) -> int:
        device = self._cuda.memory_stats(self._index)
        # Later versions of torch count them for pinned memory, too.
        pinned: dict[str, int] = getattr(self._cuda, "host_memory_stats", dict)()
        return sum(
            stats.get(name, 0)
            for stats, names in ((device, _DEVICE_ALLOCATIONS), (pinned, _PINNED_ALLOCATIONS))
            for name in names
        )

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

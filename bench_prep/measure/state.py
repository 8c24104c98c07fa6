"""The machine's state at one moment, and before and after a span of timed blocks.

It is read between timed blocks alone, by the thread that times. Counters of the kernel say what
happened meanwhile, so nothing has to run beside what is timed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench_prep.measure.device_state import THROTTLES, DeviceState, device_reader
from bench_prep.measure.interpreter import slowed_by


@dataclass(frozen=True)
class MachineState:
    """The machine and the process that times, at one moment; None is unknown.

    Times are in seconds and add up since the machine's or the process's start.

    Attributes:
        at_s: this moment.
        read_s: how long reading this state took.
        governor: the frequency governor of the processors that the process may use.
        load: runnable tasks, mean of the last minute.
        processors: of the machine.
        affinity: the numbers of the processors that the process may use.
        busy_s, idle_s: of all processors together.
        steal_s: time that a hypervisor gave to others although this machine had work.
        own_s: processor time of this process.
        waited_s: for which this thread was ready to run and waited for a processor.
        quota_s: for which the container's processor quota stopped it.
        threads: of torch's parallel loops.
        omp_num_threads: the variable, as it is set.
        slowed_by: what makes this interpreter slower than others (`interpreter.slowed_by`).
        device: the device that is used; None where there is none.
    """

    at_s: float
    read_s: float = 0.0
    governor: str | None = None
    load: float | None = None
    processors: int | None = None
    affinity: tuple[int, ...] = ()
    busy_s: float | None = None
    idle_s: float | None = None
    steal_s: float | None = None
    own_s: float = 0.0
    waited_s: float | None = None
    quota_s: float | None = None
    threads: int | None = None
    omp_num_threads: str | None = None
    slowed_by: tuple[str, ...] = ()
    device: DeviceState | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> MachineState:
        device = data["device"]
        return cls(
            **data
            | {
                "affinity": tuple(data["affinity"]),
                "slowed_by": tuple(data["slowed_by"]),
                "device": None if device is None else DeviceState.from_json(device),
            }
        )


def read_state(device: Callable[[], DeviceState] | None = None) -> MachineState:
    """The state now; `device` reads that of the device (`device_state.device_reader`)."""
    start = time.perf_counter()
    affinity = tuple(sorted(os.sched_getaffinity(0)))
    busy, idle, steal = _processor_times()
    torch = sys.modules.get("torch")
    state: dict[str, Any] = {
        "governor": _governor(affinity),
        "load": _load(),
        "processors": os.cpu_count(),
        "affinity": affinity,
        "busy_s": busy,
        "idle_s": idle,
        "steal_s": steal,
        "own_s": time.process_time(),
        "waited_s": _waited_s(),
        "quota_s": quota_s(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        "threads": None if torch is None else torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "slowed_by": slowed_by(),
        "device": None if device is None else device(),
    }
    end = time.perf_counter()
    return MachineState(at_s=end, read_s=end - start, **state)


def state_reader(device: Any) -> Callable[[], MachineState]:
    """`read_state` for this `torch.device`."""
    reader = None if device.type == "cpu" else device_reader(device.index or 0)
    return partial(read_state, reader)


def together(one: MachineState, other: MachineState) -> MachineState:
    """Processes that time in turn, seen as one: what they used and what slows them, added."""

    def total(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + b

    return replace(
        one,
        read_s=one.read_s + other.read_s,
        own_s=one.own_s + other.own_s,
        waited_s=total(one.waited_s, other.waited_s),
        threads=max((n for n in (one.threads, other.threads) if n is not None), default=None),
        slowed_by=tuple(dict.fromkeys(one.slowed_by + other.slowed_by)),
    )


@dataclass(frozen=True)
class Span:
    """The machine before and after some timed blocks."""

    before: MachineState
    after: MachineState

    @property
    def throttled(self) -> tuple[str, ...]:
        """Why the device protected itself by running slower, at either end or in between."""
        before, after = self.before.device, self.after.device
        if before is None or after is None:
            return ()
        now = {*(before.reasons or ()), *(after.reasons or ())}
        return tuple(reason for reason in THROTTLES if reason in now | self.slowed)

    @property
    def slowed(self) -> set[str]:
        """For which reasons the device counted that it ran slower meanwhile."""
        before, after = self.before.device, self.after.device
        if before is None or after is None or before.slowed_ns is None or after.slowed_ns is None:
            return set()
        then = before.slowed_ns
        return {name for name, ns in after.slowed_ns.items() if ns > then.get(name, ns)}

    def to_json(self) -> dict[str, Any]:
        return {"before": self.before.to_json(), "after": self.after.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Span:
        return cls(*(MachineState.from_json(data[name]) for name in ("before", "after")))


def grown(spans: Sequence[Span], name: str) -> float | None:
    """By how much a counter of `MachineState` grew in all spans, in its unit; None: unknown."""
    ends = [(getattr(span.before, name), getattr(span.after, name)) for span in spans]
    if not ends or any(value is None for pair in ends for value in pair):
        return None
    return float(sum(after - before for before, after in ends))


def others_busy(spans: Sequence[Span]) -> float | None:
    """Processors that other work than `own_s` kept busy, mean over the spans; None: unknown.

    The kernel counts in ticks, so it can be a little below zero.
    """
    elapsed, busy, own = (grown(spans, name) for name in ("at_s", "busy_s", "own_s"))
    return (busy - own) / elapsed if elapsed and busy is not None and own is not None else None


def _governor(processors: tuple[int, ...]) -> str | None:
    try:
        return ",".join(
            sorted(
                {
                    Path(f"/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor")
                    .read_text()
                    .strip()
                    for number in processors
                }
            )
        )
    except OSError:
        return None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _processor_times() -> tuple[float | None, float | None, float | None]:
    """Busy, idle and stolen seconds of all processors; all None where the kernel does not count."""
    try:
        times = psutil.cpu_times()
    except (OSError, RuntimeError, ValueError):
        return None, None, None
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    idle = times.idle + times.iowait
    return (busy, idle, times.steal) if busy + idle > 0 else (None, None, None)


def _waited_s() -> float | None:
    """The second number of /proc/thread-self/schedstat, which is in nanoseconds."""
    try:
        ran, waited, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except (OSError, ValueError):
        return None
    return waited / 1e9 if ran else None  # this thread has run: zero is a kernel without counters


def quota_s(membership: Path, mount: Path) -> float | None:
    """For how long the processor quota of our control groups has stopped us; None: unknown.

    `membership` is /proc/self/cgroup. A quota of a group above ours stops us, too; in a container
    our group is often the mount's root, whatever its path is called outside.
    """
    found = None
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            root = mount / controllers if controllers else mount
            inner = root / group.strip("/")
            for folder in {inner, *inner.parents}:
                if folder.is_relative_to(root):
                    stopped = _stopped_s(folder / "cpu.stat")
                    found = stopped if found is None else max(found, stopped or 0.0)
    return found


def _stopped_s(file: Path) -> float | None:
    """Version 2 counts `throttled_usec`, version 1 `throttled_time` in nanoseconds."""
    try:
        lines = dict(line.split() for line in file.read_text().splitlines())
    except (OSError, ValueError):
        return None
    # A group without a quota has no such line.
    return int(lines.get("throttled_usec", 0)) / 1e6 + int(lines.get("throttled_time", 0)) / 1e9

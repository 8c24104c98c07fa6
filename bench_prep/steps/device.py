"""What the device does in a step, from the Chrome trace of torch's profiler (Kineto).

The device is *busy* while a kernel or a copy runs. A gap between two of them is the device's own
where the later one had been launched before the earlier one ended, as inside a CUDA graph; the
other gaps are idle time, in which the device waits for the host. Busy time and own gaps together
are *occupied*: no work of the host that goes away makes them shorter.

The host waits for the device in calls that synchronize; those are in the trace too.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_CALLS = {"cuda_runtime", "cuda_driver"}
#: In the name of a call in which the host waits for the device, HIP's too.
_WAITS = "Synchronize"


@dataclass(frozen=True)
class Activity:
    """Something that ran on the device; times in ns of `perf_counter_ns`."""

    name: str
    begin: int
    end: int
    stream: int
    launched: int


@dataclass(frozen=True)
class Profile:
    """The device's activities by their beginning, and begin and end of the host's waits, in ns."""

    activities: list[Activity]
    waits: NDArray[np.int64]


@dataclass(frozen=True)
class DeviceSteps:
    """Of each profiled step, in ns: see the module. `length` is that of the profiled step."""

    busy: NDArray[np.int64]
    occupied: NDArray[np.int64]
    length: NDArray[np.int64]

    @property
    def own_gaps(self) -> NDArray[np.int64]:
        return self.occupied - self.busy


def clock_offset_ns() -> int:
    """The Unix time at `perf_counter_ns` zero, in ns: of the closest of several pairs of readings.

    Kineto's times are Unix times.
    """
    pairs = []
    for _ in range(100):
        before = time.perf_counter_ns()
        unix = time.time_ns()
        after = time.perf_counter_ns()
        pairs.append((after - before, unix - (before + after) // 2))
    return min(pairs)[1]


def read_profile(file: Path, offset_ns: int) -> Profile:
    """All activities of the device in a trace, and the host's waits for it.

    `offset_ns` is of `clock_offset_ns`. An activity without the call that
    launched it counts as launched when it began.

    Raises:
        ValueError: not such a trace.
    """
    trace: dict[str, Any] = json.loads(
        file.read_text(encoding="utf-8", errors="replace"),
        strict=False,  # names of kernels
    )
    base = int(trace.get("baseTimeNanoseconds", 0)) - offset_ns

    def time_of(microseconds: float) -> int:
        return base + round(microseconds * 1000)

    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    launched = {
        event["args"]["correlation"]: time_of(event["ts"])
        for event in events
        if event.get("cat") in _CALLS and "correlation" in event.get("args", {})
    }
    waits = [
        (time_of(event["ts"]), time_of(event["ts"] + event["dur"]))
        for event in events
        if event.get("cat") in _CALLS and _WAITS in event["name"]
    ]
    activities = []
    for event in events:
        if event.get("cat") in _DEVICE:
            begin = time_of(event["ts"])
            arguments = event.get("args", {})
            activities.append(
                Activity(
                    event["name"],
                    begin,
                    begin + round(event["dur"] * 1000),
                    int(arguments.get("stream", 0)),
                    min(begin, launched.get(arguments.get("correlation"), begin)),
                )
            )
    return Profile(
        sorted(activities, key=lambda one: one.begin),
        np.array(sorted(waits), dtype=np.int64).reshape(-1, 2),
    )


def device_steps(
    activities: list[Activity], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> DeviceSteps | None:
    """What the device did for each step, by when it was launched; None if nothing ran.

    `begins` and `ends` are the host's steps, in ns, in order.
    """
    busy, occupied = np.zeros((2, len(begins)), dtype=np.int64)
    reached = 0
    for one in activities:
        step = int(np.searchsorted(begins, one.launched, side="right")) - 1
        if step >= 0 and one.launched < ends[step]:
            new = max(0, one.end - max(one.begin, reached))
            gap = max(0, one.begin - reached)
            busy[step] += new
            occupied[step] += new + (gap if reached and one.launched < reached else 0)
        reached = max(reached, one.end)
    if not busy.any():
        return None
    return DeviceSteps(busy, occupied, ends - begins)

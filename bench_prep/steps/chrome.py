"""Steps as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Format: "Trace Event Format", complete events (`ph` X, `ts` and `dur` in microseconds) and
metadata. Each arm is a process of its own whose time begins at its first step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from bench_prep.steps.device import Activity
from bench_prep.steps.frames import Frames, same_thread
from bench_prep.steps.parts import CLIENT, ENGINE_CORE, NAMES, OUTPUT, RUNNER
from bench_prep.steps.recorder import Recording

#: Steps of each arm in a trace.
STEPS_SHOWN = 32
_STEPS = "steps"
_THREADS = (_STEPS, ENGINE_CORE, RUNNER, OUTPUT, CLIENT)
#: Threads of the device's streams are numbered from here, so many for each.
_DEVICE, _ROWS = 100, 32


@dataclass(frozen=True)
class Shown:
    """An arm in a trace: steps that follow each other, and the device's activities, if any."""

    name: str
    begins: Sequence[int]
    end: int
    activities: Sequence[Activity] = ()


def last_run(name: str, frames: Frames, activities: Sequence[Activity] = ()) -> Shown:
    """The last steps of the arm's last stretch, `STEPS_SHOWN` at most."""
    last = np.flatnonzero(frames.stretches == frames.stretches[-1])
    # Only those that follow each other without a step in between that does not count.
    follows = frames.begins[last][1:] == frames.ends[last][:-1]
    broken = np.flatnonzero(~follows)
    first = int(broken[-1]) + 1 if broken.size else 0
    chosen = last[first:][-STEPS_SHOWN:]
    return Shown(name, frames.begins[chosen].tolist(), int(frames.ends[chosen[-1]]), activities)


def chrome_trace(
    arms: Sequence[Shown], recordings: Mapping[str, Recording | None], about: Mapping[str, str]
) -> bytes:
    """The JSON of a trace; `about` is kept in it as `otherData`."""
    events = [
        event for number, arm in enumerate(arms, 1) for event in _events(number, arm, recordings)
    ]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}
    return json.dumps(trace, separators=(",", ":")).encode()


def _events(
    process: int, arm: Shown, recordings: Mapping[str, Recording | None]
) -> Iterator[dict[str, Any]]:
    zero = arm.begins[0]

    def event(thread: int, name: str, begin: int, end: int, **more: Any) -> dict[str, Any]:
        times = {"ts": (begin - zero) / 1000, "dur": (end - begin) / 1000}
        return {"ph": "X", "pid": process, "tid": thread, "name": name, **times, **more}

    def named(thread: int, name: str) -> Iterator[dict[str, Any]]:
        common = {"ph": "M", "pid": process, "tid": thread}
        yield {**common, "name": "thread_name", "args": {"name": name}}
        yield {**common, "name": "thread_sort_index", "args": {"sort_index": thread}}

    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": arm.name}}
    yield from named(0, _STEPS)
    for number, (begin, end) in enumerate(zip(arm.begins, [*arm.begins[1:], arm.end], strict=True)):
        yield event(0, f"step {number}", begin, end)
    for name in (ENGINE_CORE, RUNNER, OUTPUT, CLIENT):
        recording = recordings.get(name)
        if recording is None:
            continue
        on_runner = same_thread(recording, recordings.get(RUNNER))
        thread = _THREADS.index(RUNNER if on_runner else name)
        yield from named(thread, RUNNER if on_runner else name)
        begins = recording.records[:, 1]
        for number, begin, end in recording.records[(begins >= zero) & (begins < arm.end)].tolist():
            yield event(thread, NAMES[number], begin, end)
    rows: dict[tuple[int, int], int] = {}  # stream and number -> when its last activity ends
    for one in arm.activities:
        if not zero <= one.launched < arm.end:
            continue
        # Branches of a CUDA graph run side by side in one stream; events of a row must not.
        row = next(i for i in count() if rows.get((one.stream, i), one.begin) <= one.begin)
        thread = _DEVICE + _ROWS * one.stream + row
        if (one.stream, row) not in rows:
            yield from named(thread, f"device, stream {one.stream}" + (f", {row}" if row else ""))
        rows[one.stream, row] = one.end
        launched = {"launched_us": (one.launched - zero) / 1000}
        yield event(thread, one.name, one.begin, one.end, args=launched)

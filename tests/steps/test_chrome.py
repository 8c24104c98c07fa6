"""Steps as a Chrome trace."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from bench_prep.steps.chrome import STEPS_SHOWN, Shown, chrome_trace, last_run
from bench_prep.steps.device import Activity
from bench_prep.steps.frames import Frames
from bench_prep.steps.parts import ENGINE_CORE, RUNNER
from tests.steps.timelines import recording


def assert_nested(events: Iterable[dict[str, Any]]) -> None:
    """Of a thread any two events are apart or one is inside the other, as Perfetto needs it."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in events:
        begin, length = (round(1000 * one[key]) for key in ("ts", "dur"))
        assert length >= 0
        threads[one["pid"], one["tid"]].append((begin, -(begin + length)))
    assert threads
    for spans in threads.values():
        open_until: list[int] = []
        for begin, end in sorted(spans):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or -end <= open_until[-1]
            open_until.append(-end)


def test_two_arms_with_their_threads_and_the_device() -> None:
    runner = recording(
        ("execute_model", 1000, 1800),
        ("preprocess", 1010, 1200),
        ("update states", 1020, 1050),
        ("execute_model", 2000, 2700),
        ("execute_model", 9000, 9100),  # of no step that is shown
    )
    core = recording(("schedule", 1900, 1950), process=2)
    kernels = [
        Activity("kernel", 1300, 2100, 7, 1100),
        Activity("beside it", 1400, 2200, 7, 1100),
        Activity("later", 5000, 5100, 7, 4000),
    ]
    arms = [Shown("own", [1000, 2000], 3000, kernels), Shown("fast path", [9000], 9500)]
    trace = json.loads(chrome_trace(arms, {RUNNER: runner, ENGINE_CORE: core}, {"run": "a"}))
    assert trace["otherData"] == {"run": "a"}
    named = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in trace["traceEvents"]
        if one["name"] == "thread_name"
    }
    events = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    assert_nested(events)
    shown = [(named[one["pid"], one["tid"]], one["name"], one["ts"], one["dur"]) for one in events]
    assert shown == [
        ("steps", "step 0", 0.0, 1.0),
        ("steps", "step 1", 1.0, 1.0),
        ("engine core", "schedule", 0.9, 0.05),
        ("runner", "execute_model", 0.0, 0.8),
        ("runner", "preprocess", 0.01, 0.19),
        ("runner", "update states", 0.02, 0.03),
        ("runner", "execute_model", 1.0, 0.7),
        ("device, stream 7", "kernel", 0.3, 0.8),
        ("device, stream 7, 1", "beside it", 0.4, 0.8),
        ("steps", "step 0", 0.0, 0.5),
        ("runner", "execute_model", 0.0, 0.1),
    ]


def test_engine_core_and_runner_in_one_thread_are_shown_as_one() -> None:
    recordings = {
        RUNNER: recording(("execute_model", 100, 200)),
        ENGINE_CORE: recording(("schedule", 210, 250)),
    }
    trace = json.loads(chrome_trace([Shown("own", [100], 300)], recordings, {}))
    events = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    assert len({one["tid"] for one in events}) == 2  # steps, and the thread


def test_the_last_stretch_is_shown_without_a_gap() -> None:
    begins = np.arange(0, 1000, 10)
    ends = begins + 10
    stretches = np.repeat([0, 1], 50)
    frames = Frames(begins, ends, np.zeros(100, dtype=np.int64), stretches)
    shown = last_run("own", frames)
    assert (shown.begins[0], shown.end) == (1000 - 10 * STEPS_SHOWN, 1000)
    ends[90] -= 1  # another step follows this one
    assert last_run("own", frames).begins == list(range(910, 1000, 10))

"""What the device does in a step, from traces as torch's profiler writes them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_prep.steps.device import clock_offset_ns, device_steps, read_profile

#: Unix time of the trace's zero, and of `perf_counter_ns` zero.
BASE, OFFSET = 1_700_000_000_000_000_000, 1_700_000_000_000_000_000 - 5_000_000


def launch(correlation: int, ts: float, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return {
        **{"ph": "X", "cat": "cuda_runtime", "name": name, "ts": ts, "dur": 2.0},
        "args": {"correlation": correlation},
    }


def kernel(correlation: int, ts: float, dur: float, stream: int = 7) -> dict[str, Any]:
    return {
        **{"ph": "X", "cat": "kernel", "name": f"kernel {correlation}", "ts": ts, "dur": dur},
        "args": {"correlation": correlation, "stream": stream},
    }


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        launch(1, 0.0),
        kernel(1, 10.0, 20.0),
        launch(2, 15.0, "cudaGraphLaunch"),
        kernel(2, 32.0, 8.0),  # a gap of 2 behind a kernel that still ran when it was launched
        kernel(2, 41.5, 8.5),  # another kernel of that graph: a gap of 1.5
        launch(3, 60.0),
        kernel(3, 66.0, 4.0),  # the device had been waiting since 50
        launch(4, 61.0),
        kernel(4, 68.0, 4.0, stream=9),  # beside it for 2
        launch(5, 101.0),
        {**kernel(5, 110.0, 5.0), "cat": "gpu_memcpy"},
        launch(6, 120.0, "cudaEventSynchronize"),
        launch(7, 300.0),
        kernel(7, 310.0, 5.0),  # of no step
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": events}))
    return file


def test_busy_time_own_gaps_and_idle_time(trace: Path) -> None:
    profile = read_profile(trace, OFFSET)
    zero = 5_000_000
    assert [one.begin - zero for one in profile.activities[:3]] == [10_000, 32_000, 41_500]
    assert profile.activities[0].launched == zero
    assert (profile.waits - zero).tolist() == [[120_000, 122_000]]
    begins = np.array([0, 100_000]) + zero
    steps = device_steps(profile.activities, begins, begins + 100_000)
    assert steps is not None
    assert steps.busy.tolist() == [20_000 + 8000 + 8500 + 6000, 5000]
    assert steps.own_gaps.tolist() == [2000 + 1500, 0]


def test_what_was_launched_in_a_step_counts_there(trace: Path) -> None:
    """However late it runs."""
    activities = read_profile(trace, OFFSET).activities
    begins = np.array([5_000_000, 5_005_000])
    steps = device_steps(activities, begins, begins + np.array([5000, 10_000]))
    assert steps is not None and steps.busy.tolist() == [20_000, 0]


def test_an_activity_without_its_call(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [kernel(1, 10.0, 20.0)]}))
    profile = read_profile(file, 0)
    assert (profile.activities[0].begin, profile.activities[0].launched) == (10_000, 10_000)
    assert profile.waits.shape == (0, 2)


@pytest.mark.vllm
def test_times_of_a_real_trace_are_those_of_the_host(tmp_path: Path) -> None:
    """torch comes with vLLM; the clock is the same with a device and without."""
    from torch.profiler import ProfilerActivity, profile, record_function

    file = tmp_path / "trace.json"
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        before = time.perf_counter_ns()
        with record_function("here"):
            pass
        after = time.perf_counter_ns()
    profiled.export_chrome_trace(str(file))
    trace = json.loads(file.read_text())
    (event,) = [one for one in trace["traceEvents"] if one.get("name") == "here"]
    trace["traceEvents"] = [event | {"cat": "kernel"}]
    file.write_text(json.dumps(trace))
    (found,) = read_profile(file, clock_offset_ns()).activities
    # Two clocks of a machine agree to microseconds; a wrong base is off by months.
    assert before - 10_000_000 < found.begin <= found.end < after + 10_000_000


def test_nothing_ran() -> None:
    assert device_steps([], np.array([0]), np.array([100])) is None

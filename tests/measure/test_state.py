"""The machine's state, read from the real files of this machine."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench_prep.measure.device_state import DeviceState, device_reader
from bench_prep.measure.interpreter import slowed_by
from bench_prep.measure.state import MachineState, Span, quota_s, read_state


def spin(seconds: float) -> None:
    """Work that takes so much of a processor, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_it_is_what_other_sources_say() -> None:
    before, state, after = psutil.getloadavg()[0], read_state(), psutil.getloadavg()[0]
    assert state.affinity == tuple(sorted(psutil.Process().cpu_affinity() or ()))
    assert state.processors == psutil.cpu_count()
    assert min(before, after) - 0.01 <= state.load <= max(before, after) + 0.01
    assert state.omp_num_threads == os.environ.get("OMP_NUM_THREADS")
    assert state.device is None
    assert 0 < state.read_s < state.at_s


def test_its_counters_grow_with_the_work() -> None:
    before = read_state()
    spin(0.2)
    after = read_state()
    assert after.at_s - before.at_s >= 0.2
    assert after.own_s - before.own_s > 0.1
    if before.busy_s is not None and after.busy_s is not None:
        assert after.busy_s > before.busy_s


def test_waiting_for_a_processor_is_counted() -> None:
    """Two threads on one processor; without the interpreter's lock they would each want all."""
    if read_state().waited_s is None:
        pytest.skip("this kernel does not count it")
    allowed = os.sched_getaffinity(0)
    busy = [sys.executable, "-c", "while True: pass"]
    os.sched_setaffinity(0, {min(allowed)})  # inherited
    other = subprocess.Popen(busy)
    try:
        before = read_state()
        spin(0.5)
        after = read_state()
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, allowed)
    assert before.affinity == (min(allowed),)
    assert before.waited_s is not None and after.waited_s is not None
    assert after.waited_s - before.waited_s > 0.02


def test_it_survives_the_way_to_the_parent() -> None:
    device = DeviceState(clock_mhz=1980, reasons=("idle",), slowed_ns={"power cap": 5})
    for read in (None, DeviceState, lambda: device):
        span = Span(read_state(read), read_state(read))
        assert Span.from_json(json.loads(json.dumps(span.to_json()))) == span


def test_it_starts_no_thread_and_leaves_no_garbage() -> None:
    read_state()
    threads = threading.active_count()
    gc.collect()
    read_state()
    assert gc.collect() == 0
    assert threading.active_count() == threads


class TestSlowedBy:
    """What makes the interpreter slow, each turned on for real."""

    @pytest.fixture(autouse=True)
    def _as_before(self) -> Iterator[None]:
        trace, profile = sys.gettrace(), sys.getprofile()
        yield
        sys.settrace(trace)
        sys.setprofile(profile)
        tracemalloc.stop()

    def test_trace_and_profile_functions(self) -> None:
        sys.settrace(lambda *_: None)
        sys.setprofile(lambda *_: None)
        found = slowed_by()
        assert f"a Python trace function of {__name__}" in found
        assert f"a Python profile function of {__name__}" in found

    def test_tracemalloc(self) -> None:
        assert "tracemalloc" not in slowed_by()
        tracemalloc.start()
        assert "tracemalloc" in slowed_by()

    def test_torch(self) -> None:
        torch = pytest.importorskip("torch")
        with torch.autograd.set_detect_anomaly(True):
            assert "torch's anomaly detection" in slowed_by()
        with torch.profiler.profile():
            assert "torch's profiler" in slowed_by()
        assert not [text for text in slowed_by() if "torch" in text]

    def test_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
        assert not [text for text in slowed_by() if "CUDA" in text]
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
        assert "CUDA_LAUNCH_BLOCKING: every launch waits for the device" in slowed_by()

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["-X", "dev"], "Python's development mode"),
            (["-X", "tracemalloc"], "tracemalloc"),
            (["-X", "perf"], "Python's trampoline for perf"),
        ],
    )
    def test_options_of_the_interpreter(self, options: list[str], text: str) -> None:
        if options[-1] == "perf" and not hasattr(sys, "is_stack_trampoline_active"):
            pytest.skip("from Python 3.12 on")
        script = "from bench_prep.measure.interpreter import slowed_by; print(slowed_by())"
        done = subprocess.run(
            [sys.executable, *options, "-c", script], capture_output=True, text=True, check=True
        )
        assert text in done.stdout

    def test_monitoring(self) -> None:
        if not hasattr(sys, "monitoring"):
            pytest.skip("from Python 3.12 on")
        sys.monitoring.use_tool_id(3, "a tool")
        try:
            assert "sys.monitoring by a tool" in slowed_by()
        finally:
            sys.monitoring.free_tool_id(3)


class TestQuota:
    """/proc/self/cgroup and the groups' files, as the two versions of control groups have them."""

    def write(self, folder: Path, text: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.stat").write_text(text)

    def read(self, tmp_path: Path, membership: str) -> float | None:
        (tmp_path / "cgroup").write_text(membership)
        return quota_s(tmp_path / "cgroup", tmp_path / "mount")

    def test_version_2_in_a_container(self, tmp_path: Path) -> None:
        self.write(tmp_path / "mount", "usage_usec 9\nnr_throttled 3\nthrottled_usec 1500000\n")
        assert self.read(tmp_path, "0::/\n") == 1.5
        # Without a namespace of its own the path is the host's, and not there.
        assert self.read(tmp_path, "0::/docker/0123\n") == 1.5

    def test_a_group_above(self, tmp_path: Path) -> None:
        self.write(tmp_path / "mount/a/b", "usage_usec 9\n")
        self.write(tmp_path / "mount/a", "throttled_usec 2000000\n")
        self.write(tmp_path / "mount", "usage_usec 9\n")
        assert self.read(tmp_path, "0::/a/b\n") == 2.0

    def test_version_1(self, tmp_path: Path) -> None:
        self.write(tmp_path / "mount/cpu,cpuacct/a", "nr_throttled 1\nthrottled_time 250000000\n")
        assert self.read(tmp_path, "4:memory:/a\n2:cpu,cpuacct:/a\n0::/a\n") == 0.25

    def test_no_quota_is_no_stop(self, tmp_path: Path) -> None:
        self.write(tmp_path / "mount", "usage_usec 9\n")
        assert self.read(tmp_path, "0::/\n") == 0.0

    def test_nothing_to_read_is_unknown(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "0::/\n") is None
        assert quota_s(tmp_path / "absent", tmp_path) is None


@pytest.mark.gpu
class TestDevice:
    """The real device, by the library of its maker where that is installed."""

    def test_it_is_read(self) -> None:
        import torch

        torch.ones(1, device="cuda")
        state = read_state(device_reader(0))
        print(json.dumps(state.to_json(), indent=1))
        assert state.device is not None
        device = state.device
        assert device.clock_mhz is None or 0 < device.clock_mhz < 5000
        assert device.temperature_c is None or 0 < device.temperature_c < 120
        assert device.power_w is None or 0 < device.power_w < 3000
        assert device.other_processes is None or device.other_processes >= 0

    def test_nvidia_answers_with_its_library(self) -> None:
        import torch

        pytest.importorskip("pynvml")
        if torch.version.hip is not None:
            pytest.skip("not a device of NVIDIA")
        device = device_reader(0)()
        assert (device.clock_mhz, device.temperature_c) != (None, None)


def test_a_state_without_anything_known_can_be_made() -> None:
    state = MachineState(at_s=1.0)
    assert MachineState.from_json(state.to_json()) == state

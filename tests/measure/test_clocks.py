"""One timed block, with steps and a device that only note what is done to them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bench_prep.measure import clocks
from bench_prep.measure.clocks import time_block
from bench_prep.measure.records import Block


class FakeSteps:
    """Notes every call in `log`; a step's call takes `takes_ns` of the fake time."""

    def __init__(self, log: list[Any], now: FakeTime | None = None, takes_ns: int = 0) -> None:
        self.log = log
        self.now = now
        self.takes_ns = takes_ns
        self.number = 0

    def restart(self) -> None:
        self.number = 0
        self.log.append("restart")

    def before(self) -> None:
        self.log.append("before")

    def call(self) -> None:
        self.number += 1
        self.log.append("call")
        if self.now is not None:
            self.now.ns += self.takes_ns * self.number

    def after(self) -> None:
        self.log.append("after")


class FakeTime:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.ns = 10_000

    def perf_counter_ns(self) -> int:
        return self.ns


class FakeEvent:
    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    def record(self) -> None:
        self.log.append(f"record {self.name}")

    def elapsed_time(self, later: FakeEvent) -> float:
        self.log.append(f"elapsed {self.name} {later.name}")
        return 0.0025  # ms


class FakeDevice:
    """A device that needs `behind_ns` after a call until it is idle."""

    def __init__(self, log: list[Any], now: FakeTime | None = None, behind_ns: int = 0) -> None:
        self.log = log
        self.now = now
        self.behind_ns = behind_ns
        self.held: list[int] = []
        self.names = iter("ABCDEF")
        self.allocated = 0

    def synchronize(self) -> None:
        if self.now is not None and self.log[-1] == "call":
            self.now.ns += self.behind_ns
        self.log.append("synchronize")

    def hold(self, nanoseconds: int) -> None:
        self.held.append(nanoseconds)
        self.log.append("hold")

    def event(self) -> FakeEvent:
        return FakeEvent(self.log, next(self.names))

    def allocations(self) -> int:
        return self.allocated

    def launch_least(self) -> None:
        self.log.append("call")
        if self.now is not None:
            self.now.ns += 300


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    now = FakeTime()
    monkeypatch.setattr(clocks, "time", now)
    return now


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


def test_order_without_a_device() -> None:
    log: list[Any] = []
    samples = time_block(FakeSteps(log), warmup=1, iters=2, device=None)
    assert log == ["restart", *["before", "call", "after"] * 3]
    assert set(samples) == {"host", "ready", "preempted"}
    assert samples["ready"] == samples["host"]
    assert len(samples["host"]) == 2


def test_order_with_a_device() -> None:
    log: list[Any] = []
    time_block(FakeSteps(log), warmup=1, iters=2, device=FakeDevice(log))
    first = ["before", "synchronize", "call", "synchronize", "after"]
    # The device is held before the first event, so that nothing it measures waits for the host.
    second = ["before", "synchronize", "hold", "record A", "call", "record B", "synchronize",
              "after", "elapsed A B"]  # fmt: skip
    assert log == ["restart", *first * 3, "restart", *second * 3]


def test_warmup_is_not_recorded(fake_time: FakeTime) -> None:
    steps = FakeSteps([], fake_time, takes_ns=100)
    samples = time_block(steps, warmup=3, iters=4, device=None)
    assert samples["host"] == [400, 500, 600, 700]


def test_without_warmup_the_first_step_counts(fake_time: FakeTime) -> None:
    steps = FakeSteps([], fake_time, takes_ns=100)
    assert time_block(steps, warmup=0, iters=2, device=None)["host"] == [100, 200]


def test_ready_ends_when_the_device_is_idle(fake_time: FakeTime) -> None:
    log: list[Any] = []
    steps = FakeSteps(log, fake_time, takes_ns=100)
    device = FakeDevice(log, fake_time, behind_ns=7_000)
    samples = time_block(steps, warmup=1, iters=3, device=device)
    assert samples["host"] == [200, 300, 400]
    assert samples["ready"] == [7_200, 7_300, 7_400]
    assert samples["device"] == [2_500] * 3


def test_the_device_is_held_for_longer_than_a_call(fake_time: FakeTime) -> None:
    log: list[Any] = []
    steps = FakeSteps(log, fake_time, takes_ns=1_000_000)
    device = FakeDevice(log)
    samples = time_block(steps, warmup=1, iters=5, device=device)
    assert len(device.held) == 1 + 5
    assert all(held >= 2 * samples["host"][2] for held in device.held)


def test_only_the_call_is_timed(monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime) -> None:
    class Slow(FakeSteps):
        def before(self) -> None:
            fake_time.ns += 1_000_000

        def after(self) -> None:
            fake_time.ns += 1_000_000

    samples = time_block(Slow([], fake_time, takes_ns=5), warmup=0, iters=2, device=None)
    assert samples["host"] == [5, 10]


def test_a_busy_call_is_in_host_time_and_without_a_device_in_ready_time_alike() -> None:
    class Busy(FakeSteps):
        def call(self) -> None:
            spin(2_000_000)

    samples = time_block(Busy([]), warmup=0, iters=5, device=None)
    assert min(samples["host"]) >= 2_000_000
    assert samples["ready"] == samples["host"]


def test_what_is_done_around_the_call_is_in_no_time() -> None:
    class BusyAround(FakeSteps):
        def before(self) -> None:
            spin(20_000_000)

        after = before

    samples = time_block(BusyAround([]), warmup=0, iters=5, device=None)
    assert min(samples["host"]) < 20_000_000


def test_a_step_from_which_the_processor_is_taken_is_marked() -> None:
    class Long(FakeSteps):
        def call(self) -> None:
            spin(40_000_000)

    before = os.sched_getaffinity(0)
    one = {min(before)}
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, one)
        os.sched_setaffinity(0, one)  # of this thread alone
        samples = time_block(Long([]), warmup=1, iters=5, device=None)
    finally:
        os.sched_setaffinity(0, before)
        busy.kill()
        busy.wait()
    assert any(samples["preempted"])
    block = Block("candidate", samples)
    kept = [t for t, lost in zip(samples["host"], samples["preempted"], strict=True) if not lost]
    assert block.times("host") == block.times("ready") == kept
    assert block.preempted == pytest.approx(1 - len(kept) / 5)


def test_a_step_that_waits_of_itself_counts() -> None:
    """What a candidate waits for is its own time, and no other program's."""

    class Waiting(FakeSteps):
        def call(self) -> None:
            threading.Event().wait(0.001)

    samples = time_block(Waiting([]), warmup=1, iters=20, device=None)
    assert len(Block("candidate", samples).times("host")) > 10


def spin(nanoseconds: int) -> None:
    """Keep this thread busy."""
    end = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < end:
        pass


def test_the_clocks_cost_is_that_of_steps_which_do_nothing() -> None:
    cost = clocks.clock_cost(None)
    assert cost["host"] == cost["ready"] > 0


def test_the_clocks_cost_has_every_clock_of_the_device(fake_time: FakeTime) -> None:
    log: list[Any] = ["call"]

    class Idle(FakeDevice):
        def synchronize(self) -> None:
            fake_time.ns += 4_000

    assert clocks.clock_cost(Idle(log)) == {"host": 0, "ready": 4_000, "device": 2_500}


def test_the_floor_is_that_of_the_least_launch(fake_time: FakeTime) -> None:
    device = FakeDevice(["nothing"], fake_time, behind_ns=4_000)
    assert clocks.launch_floor(device) == {"host": 300, "ready": 4_300, "device": 2_500}


def test_real_time_is_in_nanoseconds() -> None:
    class Sleeping(FakeSteps):
        def call(self) -> None:
            time.sleep(0.002)

    samples = time_block(Sleeping([]), warmup=0, iters=3, device=None)
    assert all(value >= 2_000_000 for value in samples["host"])


class SeesCollector(FakeSteps):
    def call(self) -> None:
        self.log.append(gc.isenabled())


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_off_in_timed_steps(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    log: list[Any] = []
    time_block(SeesCollector(log), warmup=1, iters=1, device=FakeDevice(log))
    seen = [entry for entry in log if isinstance(entry, bool)]
    assert seen == [False] * 4
    assert gc.isenabled() is enabled


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_comes_back_after_an_error(enabled: bool) -> None:
    class Failing(FakeSteps):
        def call(self) -> None:
            raise RuntimeError("in a step")

    (gc.enable if enabled else gc.disable)()
    with pytest.raises(RuntimeError, match="in a step"):
        time_block(Failing([]), warmup=0, iters=1, device=None)
    assert gc.isenabled() is enabled

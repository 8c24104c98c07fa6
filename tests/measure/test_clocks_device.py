"""What each clock shows of a delay that is planted in a step, on a real device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from bench_prep.measure.clocks import CudaDevice, clock_cost, launch_floor, time_block
from bench_prep.measure.records import CLOCKS

pytestmark = pytest.mark.gpu

PLANTED = 4_000_000  # ns
#: What is certainly more than the rest of such a step.
LITTLE = PLANTED // 4
#: What is certainly in device work of that length: its length is calibrated, and so not exact.
MOST = PLANTED // 2


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    import torch

    torch.cuda.init()
    return CudaDevice()


def nothing() -> None: ...


class Steps:
    def __init__(self, call: Callable[[], Any], before: Callable[[], Any] = nothing) -> None:
        self.call = call
        self.before = before

    def restart(self) -> None: ...

    def after(self) -> None: ...


def spin() -> None:
    end = time.perf_counter_ns() + PLANTED
    while time.perf_counter_ns() < end:
        pass


def times(steps: Steps, device: CudaDevice) -> dict[str, float]:
    """The median of each clock, in nanoseconds."""
    samples = time_block(steps, warmup=3, iters=15, device=device)
    return {clock: median(samples[clock]) for clock in CLOCKS if clock in samples}


def test_a_busy_host_is_in_host_and_ready_time(device: CudaDevice) -> None:
    found = times(Steps(spin), device)
    assert found["host"] >= PLANTED
    assert found["ready"] >= PLANTED
    assert found["device"] < LITTLE


def test_queued_device_work_is_in_ready_and_device_time(device: CudaDevice) -> None:
    found = times(Steps(lambda: device.hold(PLANTED)), device)
    assert found["host"] < LITTLE
    assert found["ready"] > MOST
    assert found["device"] > MOST


def test_a_call_that_waits_for_its_device_work_is_in_all_three(device: CudaDevice) -> None:
    def work_and_wait() -> None:
        device.hold(PLANTED)
        device.synchronize()

    found = times(Steps(work_and_wait), device)
    assert min(found.values()) > MOST


def test_what_precedes_the_call_is_in_none(device: CudaDevice) -> None:
    def busy_and_queued() -> None:
        spin()
        device.hold(PLANTED)

    found = times(Steps(nothing, before=busy_and_queued), device)
    assert max(found.values()) < LITTLE


def test_the_clocks_cost_little(device: CudaDevice) -> None:
    cost = clock_cost(device)
    assert set(cost) == {"host", "ready", "device"}
    assert 0 < cost["host"] < cost["ready"] < 200_000
    assert 0 <= cost["device"] < 100_000


def test_a_launch_takes_longer_than_nothing(device: CudaDevice) -> None:
    cost, floor = clock_cost(device), launch_floor(device)
    assert set(floor) == {"host", "ready", "device"}
    assert cost["host"] < floor["host"] < floor["ready"] < 500_000
    assert cost["ready"] < floor["ready"]

"""What removing a part could save at most, and who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest

from bench_prep.steps.device import DeviceSteps
from bench_prep.steps.frames import Arm, Part
from bench_prep.steps.limits import device_parts, most_saved, waiting
from bench_prep.steps.store import parts_of


def times(value: int) -> np.ndarray:
    return np.full(5, value, dtype=np.int64)


def arm(
    *parts: tuple[str, str, str, int],
    device: tuple[int, int] | None = None,
    asynchronous: bool = True,
) -> Arm:
    """Steps of 1000; `device` is its busy and its occupied time."""
    found = DeviceSteps(times(device[0]), times(device[1]), times(1100)) if device else None
    made = [Part(name, where, kind, times(value)) for name, where, kind, value in parts]
    return Arm("own", times(1000), times(990), made, 13.0, asynchronous, found)


def saved(one: Arm) -> dict[str, float | None]:
    return {part.name: most_saved(one, part) for part in (*one.parts, *device_parts(one))}


ONE_THREAD = (("prepare inputs", "host", "work", 300), ("the rest", "host", "work", 500))


def test_the_host_is_the_bottleneck() -> None:
    one = arm(*ONE_THREAD, ("sample", "host", "work", 190), device=(350, 400))
    # The device does not work for 650, which is more than any part.
    assert saved(one) == {
        "prepare inputs": 300,
        "the rest": 500,
        "sample": 190,
        "kernels and copies": 10,  # the host works 990 of 1000
        "own gaps": 10,
    }
    assert "the host is the bottleneck: host busy 99 %, device busy 35 % of" in waiting(one)
    idle = {part.name: part.median for part, _ in parts_of(one)}["idle"]
    assert idle == 600


@pytest.mark.parametrize("busy", [990, 600])  # own gaps, which the profiler makes longer, or not
def test_the_device_is_the_bottleneck(busy: int) -> None:
    """The host waits for the token, so the device always has its next step."""
    one = arm(*ONE_THREAD, ("wait for the token", "host", "wait", 200), device=(busy, 990))
    assert saved(one) == {
        "prepare inputs": 0,
        "the rest": 0,
        "wait for the token": None,
        "kernels and copies": 200,
        "own gaps": min(990 - busy, 200),
    }
    assert waiting(one).startswith("the device is the bottleneck: in each step the host waits 0 us")


def test_without_asynchronous_scheduling_a_wait_says_nothing() -> None:
    """It is there in every step: host and device work in turn."""
    wait = ("wait for the token", "host", "wait", 200)
    one = arm(*ONE_THREAD, wait, device=(150, 160), asynchronous=False)
    assert (saved(one)["prepare inputs"], saved(one)["the rest"]) == (300, 500)
    assert "the host comes first: host busy 80 %, device busy 15 %" in waiting(one)


def test_a_device_that_is_busy_all_the_time_leaves_nothing_to_save() -> None:
    one = arm(*ONE_THREAD, device=(1200, 1200))
    assert saved(one)["prepare inputs"] == 0
    assert "the device is the bottleneck: host busy 80 %, device busy 100 %" in waiting(one)


def test_the_host_comes_first_without_being_busy_all_the_time() -> None:
    one = arm(*ONE_THREAD, device=(600, 700))
    assert "the host comes first: host busy 80 %, device busy 60 %" in waiting(one)
    assert saved(one)["the rest"] == 400


def test_both_wait_in_turn() -> None:
    assert "wait for each other in turn" in waiting(arm(*ONE_THREAD, device=(850, 850)))


def test_two_processes() -> None:
    one = arm(
        ("schedule", "engine core", "work", 100),
        ("forward launch", "worker", "work", 930),
        ("between two calls", "worker", "wait", 70),
        ("client", "client", "work", 40),
    )
    assert saved(one) == {
        "schedule": 70,
        "forward launch": 900,
        "between two calls": None,
        "client": None,
    }
    assert "in turn: engine core busy 10 %, worker busy 93 % of the step" in waiting(one)


def test_waits_inside_a_part_are_no_work() -> None:
    one = arm(*ONE_THREAD, device=(900, 900))
    one.blocked["prepare inputs"] = 250
    assert one.busy("host") == pytest.approx(550)
    assert saved(one)["kernels and copies"] == 450

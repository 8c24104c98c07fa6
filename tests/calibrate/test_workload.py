"""What is planted is planted: to the unit of work, for both arms at any speed."""

from __future__ import annotations

import numpy as np
import pytest

from bench_prep.calibrate.conditions import CONDITIONS, DRIFT, LEVELS, shortest_s
from bench_prep.calibrate.workload import DeviceWork, HostWork, Planted, Speed, Work, units_of

EFFECTS = (0.0, 0.005, 0.01, 0.02, 0.05)
BUDGET_S = 6.0


class Counted:
    """Work that is only counted."""

    units = HostWork.units
    device = None
    device_name = ""

    def __init__(self) -> None:
        self.done: list[int] = []

    def read(self) -> None: ...

    def __call__(self, units: int) -> None:
        self.done.append(units)


@pytest.mark.parametrize("work", [HostWork, DeviceWork])
@pytest.mark.parametrize("slower", EFFECTS)
def test_a_slow_down_is_a_whole_number_of_units(work: type[Work], slower: float) -> None:
    exact = work.units * (1 + slower)
    assert units_of(work, 1.0, slower) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("slower", EFFECTS)
def test_it_is_one_after_every_sudden_change_too(level: float, slower: float) -> None:
    exact = HostWork.units * level * (1 + slower)
    assert units_of(HostWork, level, slower) == pytest.approx(exact, abs=1e-9)


def test_both_arms_have_the_same_speed_at_the_same_time() -> None:
    work, at = Counted(), [0.0]
    speed = Speed(lambda seconds: 1 + 0.125 * seconds, now=lambda: at[0])
    arms = [Planted(work, speed, slower) for slower in (0.0, 0.02, 0.0)]
    for at[0] in (0.0, 1.0, 2.0):
        for arm in arms:
            arm.restart()
            arm.before()
            arm.call()
            arm.after()
    assert work.done == [1600, 1632, 1600, 1800, 1836, 1800, 2000, 2040, 2000]


def test_units_cost_the_same_work() -> None:
    """Every unit writes one slot and one length, and adds one to each position."""
    work = HostWork(np.random.default_rng(1))
    work(HostWork.units)
    assert work._positions.tolist() == [index + HostWork.units for index in range(8)]
    lengths = list(work._lengths)
    work(8)
    assert work._lengths == [(length + 1) & 0x3FFF for length in lengths]
    for row in range(8):
        position = work._lengths[row]
        assert work._slots[row] == work._block_table[position >> 4] * 16 + position % 16


def test_nothing_is_planted_in_the_first_condition() -> None:
    law = CONDITIONS["none"].law(np.random.default_rng(1), BUDGET_S)
    assert {law(seconds) for seconds in (0.0, 1.0, BUDGET_S)} == {1.0}


def test_the_drift_is_that_of_the_shortest_run_and_goes_on() -> None:
    law = CONDITIONS["drift"].law(np.random.default_rng(1), BUDGET_S)
    assert law(0.0) == 1.0
    assert law(shortest_s(BUDGET_S)) == pytest.approx(1 + DRIFT)
    assert law(2 * shortest_s(BUDGET_S)) == pytest.approx(1 + 2 * DRIFT)


def test_steps_last_and_one_comes_in_the_shortest_run() -> None:
    for seed in range(50):
        law = CONDITIONS["steps"].law(np.random.default_rng(seed), BUDGET_S)
        times = np.linspace(0, BUDGET_S, 2000)
        levels = [law(float(at)) for at in times]
        assert set(levels) <= set(LEVELS)
        changes = times[1:][np.diff(levels) != 0]
        assert len(changes) == 3
        assert changes[0] <= shortest_s(BUDGET_S) + 0.01


@pytest.mark.gpu
def test_device_work_does_its_units() -> None:
    work = DeviceWork(np.random.default_rng(1))
    before = work._values.cpu()
    work(37)
    assert (work._values.cpu() - before == 37).all()

"""Recordings as steps, on timelines of which every time is known."""

from __future__ import annotations

import numpy as np
import pytest

from bench_prep.errors import Inconclusive
from bench_prep.steps.frames import Part, arm_of, blocked, frames_of, host_parts, records_per_step
from bench_prep.steps.parts import CLIENT, ENGINE_CORE, FAST, OUTPUT, OWN, RUNNER
from bench_prep.steps.stretches import NO_DECODE, UNCOUNTED, Stretch
from tests.steps.timelines import CORE_STEP, RUNNER_STEP, recording, repeated

BEGINS = range(10_000, 20_000, 1000)
STRETCHES = [Stretch(OWN, True, 0), Stretch(OWN, False, 0), Stretch(FAST, True, 1)]
STEPS = [[begin, 0] for begin in BEGINS] + [[20_000, UNCOUNTED]]

EXPECTED = {
    "schedule": 60,
    "update states": 40,
    "prepare inputs": 100,
    "attention metadata": 80,
    "other preparation": 70,  # 290 of all
    "forward launch": 200,
    "logits": 30,
    "sample": 50,
    "bookkeeping": 30,
    "output handling": 30,
}


def of_name(parts: list[Part]) -> dict[str, float]:
    for part in parts:
        assert len(part.times) == len(BEGINS)
    return {part.name: part.median for part in parts}


def test_steps_that_count() -> None:
    steps = [
        *([1000, UNCOUNTED], [2000, 0], [3010, 0], [4030, UNCOUNTED]),  # two of the first stretch
        *([5000, 1], [6000, 1], [9000, NO_DECODE]),  # one: the other waited for a request
        *([9500, 2], [9900, 2]),  # one: nothing follows the last step
    ]
    for arm, recorded, lengths in ((OWN, True, [1010, 1020]), (OWN, False, [1000])):
        assert frames_of(steps, STRETCHES, arm, recorded).lengths.tolist() == lengths
    fast = frames_of(steps, STRETCHES, FAST, True)
    assert (fast.lengths.tolist(), fast.rounds.tolist()) == ([400], [1])


def test_one_thread_does_all() -> None:
    frames = frames_of(STEPS, STRETCHES, OWN, True)
    recordings = {
        RUNNER: repeated(RUNNER_STEP, BEGINS),
        ENGINE_CORE: repeated(CORE_STEP, BEGINS),
        OUTPUT: repeated([("wait for the token", 670, 790)], BEGINS),
    }
    parts = host_parts(frames, recordings)
    assert of_name(parts) == EXPECTED | {"wait for the token": 120, "the rest": 190}
    assert {part.where for part in parts} == {"host"}
    assert (np.sum([part.times for part in parts], axis=0) == 1000).all()
    assert records_per_step(frames, recordings) == len(RUNNER_STEP) + len(CORE_STEP) + 1


def test_two_processes() -> None:
    frames = frames_of(STEPS, STRETCHES, OWN, True)
    recordings = {
        RUNNER: repeated(RUNNER_STEP, BEGINS),
        ENGINE_CORE: repeated(CORE_STEP, BEGINS, process=2),
        CLIENT: repeated([("client", 100, 107)], BEGINS, process=3),
    }
    parts = host_parts(frames, recordings)
    rest = 550 + 100 - 290 - 200 - 30 - 50 - 30
    assert of_name(parts) == EXPECTED | {"between two calls": 350, "the rest": rest, "client": 7}
    where = {part.name: part.where for part in parts}
    assert where["schedule"] == where["output handling"] == "engine core"
    assert where["prepare inputs"] == where["the rest"] == where["between two calls"] == "worker"
    along = [part.times for part in parts if part.where == "worker"]
    assert (np.sum(along, axis=0) == 1000).all()
    # What the client records is beside the step.
    assert records_per_step(frames, recordings) == len(RUNNER_STEP) + len(CORE_STEP)


def test_records_of_other_steps_are_left_out() -> None:
    """Before the first step, after the last one, and of steps between that do not count."""
    steps = [[10_000, 0], [11_000, UNCOUNTED], [12_000, 0], [13_000, UNCOUNTED]]
    records = repeated([("sample", 5, 15)], range(8000, 15_000, 500))
    core = repeated(CORE_STEP, BEGINS)
    arm = host_parts(frames_of(steps, STRETCHES, OWN, True), {RUNNER: records, ENGINE_CORE: core})
    assert {part.name: part.times.tolist() for part in arm}["sample"] == [20, 20]


def test_where_the_host_waits_inside_a_part() -> None:
    waits = [
        (at + begin, at + end)
        for at in BEGINS
        for begin, end in ((70, 130), (12, 15), (700, 780), (600, 610))
    ]
    found = blocked(
        frames_of(STEPS, STRETCHES, OWN, True),
        {RUNNER: repeated(RUNNER_STEP, BEGINS)},
        np.array(sorted(waits), dtype=np.int64),
    )
    assert found == {"prepare inputs": 60, "other preparation": 3, "sample": 10}
    none = np.zeros((0, 2), dtype=np.int64)
    assert blocked(frames_of(STEPS, STRETCHES, OWN, True), {RUNNER: recording()}, none) == {}


def test_an_arm_without_steps_says_so() -> None:
    with pytest.raises(Inconclusive, match="no step of fast path"):
        arm_of(FAST, STEPS, STRETCHES, {}, asynchronous=True)

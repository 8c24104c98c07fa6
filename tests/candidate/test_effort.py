"""Threads, and processor time that has only been moved; the figures are made up."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from bench_prep.candidate.effort import MovedWork, Threads
from bench_prep.errors import UsageError
from bench_prep.measure.records import ARMS, Block, Round

#: Nanoseconds of processor time that a step of the baseline takes in all, its call, and of them
#: a candidate's call.
ALL, CALL, FAST = 180_000, 100_000, 10_000


def one_round(*times: int) -> Round:
    """Blocks in which every step takes so many nanoseconds."""
    blocks = [
        Block(arm, {"host": [ns] * 9, "ready": [ns] * 9})
        for arm, ns in zip(ARMS, times, strict=True)
    ]
    return Round((blocks[0], blocks[1], blocks[2]))


def after(moved: MovedWork, candidate: int, times: tuple[int, int, int], steps: int = 100) -> None:
    """A round in which a step of the candidate takes the process so many nanoseconds."""
    for arm in ARMS:
        moved.add(arm, steps * (candidate if arm == "candidate" else ALL), steps)
    moved.require_saved("mine", one_round(*times))


def test_what_is_saved_is_missing_from_the_process() -> None:
    after(MovedWork(), ALL - CALL + FAST, (CALL, FAST, CALL))


def test_what_is_moved_is_not() -> None:
    with pytest.raises(
        UsageError, match=r"saves 90 us .* the process spends 90 us of it elsewhere"
    ):
        after(MovedWork(), ALL, (CALL, FAST, CALL))


def test_a_candidate_that_is_no_faster_moves_nothing() -> None:
    after(MovedWork(), 2 * ALL, (CALL, CALL + 1, CALL))


def test_noise_is_no_work() -> None:
    """A small saving, and a tenth more of the whole process's time."""
    moved = MovedWork()
    for _ in range(9):
        after(moved, round(1.1 * ALL), (CALL, CALL - 2000, CALL))


def test_one_round_in_which_something_else_ran() -> None:
    moved = MovedWork()
    for _ in range(2):
        after(moved, ALL - CALL + FAST, (CALL, FAST, CALL))
    after(moved, 2 * ALL, (CALL, FAST, CALL))


def test_short_rounds_are_added_up() -> None:
    moved = MovedWork()
    for _ in range(3):
        after(moved, ALL, (CALL, FAST, CALL), steps=30)
    with pytest.raises(UsageError):
        after(moved, ALL, (CALL, FAST, CALL), steps=30)


def test_a_round_without_times_that_count_says_nothing() -> None:
    moved = MovedWork()
    for arm in ARMS:
        moved.add(arm, 100 * ALL, 100)
    lost = Block("candidate", {"host": [FAST], "ready": [FAST], "preempted": [1]})
    before, _, behind = one_round(CALL, FAST, CALL).blocks
    moved.require_saved("mine", Round((before, lost, behind)))


def test_a_thread_that_stays() -> None:
    threads, end = Threads(), threading.Event()
    threads.require_none("mine:attach")
    thread = threading.Thread(target=end.wait, name="works on")
    thread.start()
    try:
        with pytest.raises(UsageError, match=r"has threads of its own \(works on\)"):
            threads.require_none("mine:attach")
    finally:
        end.set()
        thread.join()
    threads.require_none("mine:attach")


def test_a_thread_that_has_ended() -> None:
    threads = Threads()

    def start() -> None:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

    start()
    with threads.listening():
        pass
    threads.require_none("mine:attach")  # nothing was timed then
    with threads.listening():
        start()
    with pytest.raises(UsageError, match="has threads of its own while"):
        threads.require_none("mine:attach")


def test_a_process_whose_parent_has_ended_is_seen() -> None:
    code = """
import os, time
from bench_prep.candidate.effort import Threads
threads = Threads()
pipe = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setpgid(0, 0)
        os.write(pipe[1], b"x")
        time.sleep(20)
    os._exit(0)
os.wait()
os.read(pipe[0], 1)
threads.require_none("own")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True
    )
    assert "own has processes of its own" in done.stderr

"""When the counters of a service are written into its log."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from bench_prep.fastpath import summary as summaries
from bench_prep.fastpath.counters import Counters
from bench_prep.fastpath.summary import Summary


class Path:
    """The counters of a `FastPath`."""

    def __init__(self) -> None:
        self.counters = Counters()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of every summary; a pause is a twentieth of a second."""
    steps: list[int] = []
    monkeypatch.setattr(summaries, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(summaries, "summary", lambda counts: steps.append(counts["steps"]))
    return steps


def take_steps(path: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        path.counters.dispatched += 1
        time.sleep(0.001)


def wait_for(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_pause_brings_every_step_into_the_log_once(written: list[int]) -> None:
    path = Path()
    Summary(path, 60)
    time.sleep(0.2)
    assert written == []
    for _ in range(2):
        path.counters.dispatched += 1
        wait_for(lambda: bool(written) and written[-1] == path.counters.dispatched)
    time.sleep(0.2)
    assert written == [1, 2]


def test_without_a_pause_the_interval_brings_one(written: list[int]) -> None:
    path = Path()
    Summary(path, 1)
    take_steps(path, 2.5)
    last = path.counters.dispatched
    wait_for(lambda: written[-1] == last)
    assert len(written) >= 2


def test_nothing_is_written_before_the_end_when_turned_off(written: list[int]) -> None:
    path = Path()
    summary = Summary(path, 0)
    path.counters.dispatched = 5
    time.sleep(0.2)
    assert written == []
    summary.write()
    summary.write()
    assert written == [5]


def test_an_engine_that_is_dropped_leaves_its_last_summary_and_no_memory(
    written: list[int],
) -> None:
    path = Path()
    gone = weakref.ref(path)
    before = threading.active_count()
    Summary(path, 60)
    path.counters.dispatched = 5
    del path
    assert gone() is None
    assert written == [5]
    wait_for(lambda: threading.active_count() <= before)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_ends_writes_its_last_steps(method: str) -> None:
    code = f"""
import logging, multiprocessing, sys
from tests.fastpath.test_summary import child
if __name__ == "__main__":
    process = multiprocessing.get_context("{method}").Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def child() -> None:
    """A worker that takes five steps."""
    path = Path()
    summaries.summary = lambda counts: print(counts["steps"], flush=True)  # type: ignore[assignment]
    Summary(path, 60)
    path.counters.dispatched = 5

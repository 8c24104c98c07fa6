"""When the counters of a service are written into its log."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from bench_prep.fastpath import summary as summaries
from bench_prep.fastpath.summary import Summary


class Counters:
    """The counters of a `FastPath`."""

    steps = 0

    def counts(self) -> dict[str, Any]:
        return {"steps": self.steps}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of every summary; a pause is a twentieth of a second."""
    steps: list[int] = []
    monkeypatch.setattr(summaries, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(summaries, "summary", lambda counts: steps.append(counts["steps"]))
    return steps


def take_steps(path: Counters, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        path.steps += 1
        time.sleep(0.001)


def wait_for(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_pause_brings_every_step_into_the_log_once(written: list[int]) -> None:
    path = Counters()
    Summary(path, 60)
    time.sleep(0.2)
    assert written == []
    for _ in range(2):
        path.steps += 1
        wait_for(lambda: bool(written) and written[-1] == path.steps)
    time.sleep(0.2)
    assert written == [1, 2]


def test_without_a_pause_the_interval_brings_one(written: list[int]) -> None:
    path = Counters()
    Summary(path, 1)
    take_steps(path, 2.5)
    last = path.steps
    wait_for(lambda: written[-1] == last)
    assert len(written) >= 2


def test_nothing_is_written_before_the_end_when_turned_off(written: list[int]) -> None:
    path = Counters()
    summary = Summary(path, 0)
    path.steps = 5
    time.sleep(0.2)
    assert written == []
    summary.write()
    summary.write()
    assert written == [5]


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
    path = Counters()
    summaries.summary = lambda counts: print(counts["steps"], flush=True)  # type: ignore[assignment]
    Summary(path, 60)
    path.steps = 5

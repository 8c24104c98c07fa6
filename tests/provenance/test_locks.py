"""Who waits is told for whom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from filelock import Timeout

from bench_prep.provenance import locks
from bench_prep.provenance.locks import BUILD, holder, locked, locked_at_once

HOLDER = (
    "import sys\n"
    "from bench_prep.provenance.locks import locked\n"
    "sys.argv = ['/somewhere/bench-prep', 'build', '--worktree', 'my tree']\n"
    "with locked('build'): print('held', flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of builds."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def test_the_holder_is_named(other: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_SAY_EVERY_S", 0.1)

    def say(line: str) -> None:
        said(line)
        if len(said.lines) == 3:
            other.stdin.close()

    with locked(BUILD, say):
        assert holder(BUILD).startswith(f"process {os.getpid()} (")
    assert re.fullmatch(
        rf"waiting for process {other.pid} \(bench-prep build --worktree 'my tree'\), "
        r"at it since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d",
        said.lines[0],
    )
    assert re.search(r"\(\d+ s\)$", said.lines[2])


def test_a_lock_that_is_wanted_at_once(other: Any) -> None:
    with pytest.raises(Timeout), locked_at_once(BUILD):
        pass


def test_a_killed_holder_frees_the_lock_and_is_not_named(other: Any) -> None:
    other.kill()
    other.wait()
    assert holder(BUILD) == "another bench-prep"
    with locked_at_once(BUILD):
        pass
    assert holder(BUILD) == "another bench-prep"

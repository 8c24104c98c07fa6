"""Streams that are closed, full or read by nobody, and terminals without a width."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKS = "baseline_before_ms,candidate_ms,baseline_after_ms\n1.0,0.9,1.0\n"
RUN = "bench-prep run --no-build --rounds 1 --iters 20 --output r.csv"


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`line` of bash in `folder`, where `bench-prep` is ours."""
    bench = f'bench-prep() {{ "{sys.executable}" -m bench_prep "$@"; }}\n'
    (folder / "a.csv").write_text(BLOCKS)
    (folder / "log").write_text("INFO 12-01 13:00:00 [core.py:1] x\n")
    env = os.environ | environment
    return subprocess.run(["bash", "-c", bench + line], cwd=folder, env=env, capture_output=True)


@pytest.mark.parametrize(
    "streams", ["<&- >&- 2>&-", ">/dev/full", "2>&1 | head -1; exit ${PIPESTATUS[0]}"]
)
def test_a_run_is_stored_whatever_becomes_of_the_terminal(tmp_path: Path, streams: str) -> None:
    """Cases 28 and 39: the exit code is the verdict's."""
    assert shell(f"{RUN} {streams}", tmp_path).returncode == 4
    assert (tmp_path / "r.csv").read_text().count("\n") >= 3


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("report a.csv >/dev/full", 6),
        ("--help >/dev/full", 6),
        ("run --help >/dev/full", 6),
        ("verify-install --json >/dev/full", 6),
        ("report nosuch.csv 2>/dev/full", 2),
        ("report nosuch.csv <&- >&- 2>&-", 2),
        ("report a.csv >&-", 0),
        ("report a.csv | true; exit ${PIPESTATUS[0]}", 0),
        ("check-log - <&-", 6),
    ],
)
def test_what_cannot_be_printed(tmp_path: Path, line: str, code: int) -> None:
    done = shell(f"bench-prep {line}", tmp_path)
    assert done.returncode == code, done
    assert b"fault" not in done.stderr and len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("columns", ["0", "-1", "\u00b2", "", "9" * 30, "1"])
def test_a_terminal_without_a_width(tmp_path: Path, columns: str) -> None:
    """Case 33: JSON is whole and without colours, a report has 80 columns."""
    done = shell("bench-prep check-log --json log", tmp_path, COLUMNS=columns, FORCE_COLOR="1")
    assert done.returncode == 6 and json.loads(done.stdout)["exit_code"] == 6
    if columns != "1":
        shown = shell("bench-prep report a.csv", tmp_path, COLUMNS=columns).stdout.decode()
        assert 60 < max(map(len, shown.splitlines())) <= 80, shown

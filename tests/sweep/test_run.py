"""The command: one real sweep, what is refused before it, and the figure from its file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from bench_prep.cli.app import app
from bench_prep.errors import UsageError
from bench_prep.sweep.store import load


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench_prep", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1"},
        timeout=2000,
    )


def checked(frame: pd.DataFrame, clocks: list[str]) -> None:
    """A point has its rows, its times, and all that says what was timed."""
    keys = frame[["axis", "value", "arm", "clock"]].drop_duplicates()
    assert len(keys) == len(frame) == 4 * 2 * len(clocks)
    assert sorted(set(frame["clock"])) == clocks
    assert (frame["time_us"] > 0).all() and (frame["laps"] >= 1).all()
    for name in ("vllm_version", "fastpath_sha256", "key_sources_sha256", "device_name", "command"):
        assert frame[name].notna().all() and (frame[name] != "").all(), name
    assert (frame["equality_steps"] >= 3).all() and (frame["drawn_steps"] >= 2).all()
    assert (frame["dispatched_pct"] == 100).all() and set(frame["seed"]) == {4}


@pytest.mark.vllm
def test_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("--axes", "groups,block_size", "--points", "2", "--budget", "40", "--seed", "4")
    done = bench("sweep", *arguments, "--device", "cpu", "--output", "a.csv", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    frame = load(tmp_path / "a.csv")
    checked(frame, ["host", "ready"])
    assert (frame["command"].str.contains("--axes groups,block_size")).all()
    assert "equal    whole state identical at 4 points, after each of 12 steps" in done.stdout
    assert "result   a.csv; its figure is a.svg" in done.stdout
    assert "The candidate's host time: " in done.stdout
    again = bench("sweep", "--from", "a.csv", "--figure", "b.svg", cwd=tmp_path)
    assert again.returncode == done.returncode
    shown, figure, rest = again.stdout.partition("figure   b.svg\n")
    assert shown and shown in done.stdout and figure and not rest
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.gpu
def test_a_sweep_of_a_device(tmp_path: Path) -> None:
    arguments = ("--axes", "groups,block_size", "--points", "2", "--budget", "120", "--seed", "4")
    done = bench("sweep", *arguments, "--device", "cuda", "--output", "a.csv", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    frame = load(tmp_path / "a.csv")
    checked(frame, ["device", "host", "ready"])
    times = frame.pivot_table(index=["axis", "value", "arm"], columns="clock", values="time_us")
    assert (times["ready"] >= times["host"]).all()
    assert "Growth of device time" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--axes", "groups,colour"], "no axis 'colour'"),
        (["--points", "1"], "2 to 11 points"),
        (["--points", "12"], "2 to 11 points"),
        (["--margin", "0"], "--margin must be between"),
        (["--margin", "100"], "--margin must be between"),
        (["--budget", "0"], "--budget must be a number"),
        (["--budget", "nan"], "--budget must be a number"),
        (["--candidate", "fast"], "not of the form module:attribute"),
        (["--candidate", "none.py:attach"], "none.py"),
        (["--output", "no/such/folder.csv"], "does not exist"),
        (["--output", "."], "not an ordinary file"),
        (["--figure", "no/such/folder.svg"], "cannot be written"),
        (["--figure", "."], "not an ordinary file"),
        (["--output", "a.svg"], "would be the figure, too"),
        (["--run", "abc"], "give --from FILE|names a run of a result file"),
        (["--from", "missing.csv"], "no such file"),
    ],
)
def test_refused_before_anything_starts(arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        app(["sweep", *arguments], standalone_mode=False)
    assert error.value.remedy


def test_help_names_options_and_units(tmp_path: Path) -> None:
    shown = bench("sweep", "--help", cwd=tmp_path).stdout
    for option in ("--axes", "--points", "--mrope", "--candidate", "--worktree", "--margin",
                   "--budget", "--output", "--figure", "--from", "--seed", "--device"):  # fmt: skip
        assert option in shown
    for word in ("max_num_tokens", "per cent", "seconds", "SVG", "CSV"):
        assert word in shown

"""A real, tiny calibration, and what a killed one leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench_prep.calibrate.command import Calibration, calibrate, cells, show
from bench_prep.calibrate.load import periodic_load
from bench_prep.calibrate.store import load, together
from bench_prep.calibrate.trial import TABLE, Cell, Trial, try_once
from bench_prep.errors import Inconclusive, UsageError
from bench_prep.measure.verdict import Verdict
from bench_prep.settings import Method

#: So short that most verdicts are none.
TINY = Method(budget_s=1.0)
CONSOLE = Console(quiet=True)


def calibration(conditions: str = "none", effects: str = "0", runs: int = 1) -> Calibration:
    return Calibration(cells(conditions, effects), runs, seed=3, works=("host",), method=TINY)


def append(path: Path, trials: Iterable[Trial]) -> None:
    TABLE.append(path, map(asdict, trials))


@pytest.fixture(scope="module")
def trial() -> Trial:
    (one,) = try_once(*first(), seed=3, work="host", method=TINY, command="bench-prep calibrate")
    return one


def first() -> tuple[Cell, int]:
    return cells("none", "2")[0], 0


def saying(verdict: Verdict, trial: Trial) -> Any:
    """An attempt that has this verdict at once, whatever was planted."""

    def attempt(cell: Cell, run: int, **more: Any) -> list[Trial]:
        condition = cell.condition.name
        return [replace(trial, verdict=verdict, condition=condition, run=run, effect_pct=0.0)]

    return attempt


def test_one_verdict(trial: Trial) -> None:
    assert (trial.condition, trial.effect_pct, trial.run, trial.clock) == ("none", 2.0, 0, "ready")
    assert trial.decisive == 1 and trial.rounds >= 1 and trial.iters >= trial.slices >= 1
    assert trial.baseline_ms > 0 or trial.left_out == trial.rounds
    assert trial.seconds > 0


def test_every_condition_end_to_end(tmp_path: Path) -> None:
    """Whether anything is settled in so short a time is the machine's matter."""
    output = tmp_path / "calibration.csv"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench_prep", "calibrate", "--runs", "1", "--budget", "0.3"),
            *("--effects", "0,2", "--seed", "7", "--device", "cpu", "--output", str(output)),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )
    assert done.returncode in (0, 4), done.stderr
    frame = load(output)
    assert list(frame["condition"]) == ["none"] * 2 + ["drift"] * 2 + ["steps"] * 2 + ["load"] * 2
    assert list(frame["effect_pct"]) == [0.0, 2.0] * 4
    assert "2 %, drift" in done.stdout and "calibration.csv" in done.stdout


def test_what_is_there_is_not_repeated(tmp_path: Path, trial: Trial) -> None:
    output = tmp_path / "calibration.csv"
    attempt = saying("same", trial)
    for runs in (1, 3):
        code = calibrate(calibration("none,drift", runs=runs), output, CONSOLE, "", attempt)
        assert code == 0
        frame = load(output)
        assert len(frame) == 2 * runs == len(frame.drop_duplicates(["condition", "run"]))


@pytest.mark.parametrize(
    "column", ["cpu_model", "device_name", "python_version", "bench_prep_version"]
)
def test_rows_of_elsewhere_are_not_its_own(tmp_path: Path, trial: Trial, column: str) -> None:
    output = tmp_path / "calibration.csv"
    elsewhere = {column: "another one"}
    append(output, [replace(trial, verdict="slower", effect_pct=0.0, **elsewhere)])  # type: ignore[arg-type]
    assert calibrate(calibration(), output, CONSOLE, "", saying("same", trial)) == 0
    assert list(load(output)["verdict"]) == ["slower", "same"]


def settled(trial: Trial, verdict: Verdict = "same", **more: Any) -> Trial:
    ends: dict[str, Any] = {"change_pct": 0.1, "low_pct": -0.2, "high_pct": 0.4}
    return replace(trial, **ends | {"verdict": verdict, "rounds": 12, "left_out": 1} | more)


def test_a_file_is_counted_once(tmp_path: Path, trial: Trial) -> None:
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    append(one, [settled(trial)])
    append(other, [settled(trial, run=1), settled(trial, seed=4), settled(trial, cpu_model="m")])
    (tmp_path / "link.csv").symlink_to(one)
    files = [one, tmp_path / "link.csv", tmp_path / "." / "one.csv", other]
    assert list(together(files)["run"]) == [0, 1, 0, 0]
    copy = tmp_path / "copy.csv"
    copy.write_bytes(one.read_bytes())
    with pytest.raises(UsageError, match=r"copy.csv, line 2: the same .*one.csv, line 2") as error:
        show([one, copy], CONSOLE)
    assert error.value.remedy
    append(one, [settled(trial)])
    with pytest.raises(UsageError, match=r"one.csv, line 3: the same verdict as .*line 2 \(none"):
        show([one], CONSOLE)


@pytest.mark.parametrize(
    ("edits", "follows"),
    [
        ({"verdict": "quick"}, "same"),
        ({"verdict": "slower"}, "same"),
        ({"left_out": 3}, "inconclusive"),
        ({"rounds": 40, "left_out": 21}, "inconclusive"),
        ({"high_pct": None}, "inconclusive"),
        ({"high_pct": 1.0002}, "inconclusive"),
        ({"high_pct": 1.0}, None),
        ({"high_pct": 1.0, "verdict": "inconclusive"}, None),
        ({"verdict": "inconclusive"}, None),  # withheld
        (
            {"change_pct": 1.5, "low_pct": 1.2, "high_pct": 1.9, "verdict": "inconclusive"},
            "slower",
        ),
        ({"change_pct": 1.0, "low_pct": 0.3, "high_pct": 1.4, "verdict": "slower"}, None),
        ({"change_pct": 0.9998, "low_pct": 0.3, "high_pct": 1.4, "verdict": "slower"}, "inconcl"),
        ({"change_pct": float("nan"), "low_pct": None, "verdict": "inconclusive"}, None),
        ({"low_pct": "x"}, None),
    ],
)
def test_a_verdict_must_follow(
    tmp_path: Path, trial: Trial, edits: dict[str, Any], follows: str | None
) -> None:
    path = tmp_path / "c.csv"
    append(path, [settled(trial), settled(trial, run=1, **edits)])
    if edits.get("low_pct") == "x":
        with pytest.raises(UsageError, match=r"c.csv, line 3: low_pct: 'x' is not a number"):
            show([path], CONSOLE)
    elif follows is None:
        show([path], CONSOLE)
    else:
        with pytest.raises(UsageError, match=rf"c.csv, line 3: the verdict .* \({follows}"):
            show([path], CONSOLE)


def test_an_interrupted_one_keeps_what_is_finished(tmp_path: Path, trial: Trial) -> None:
    output = tmp_path / "calibration.csv"

    def attempt(cell: Cell, run: int, **more: Any) -> list[Trial]:
        if run == 2:
            raise KeyboardInterrupt
        return saying("same", trial)(cell, run)

    assert calibrate(calibration(runs=5), output, CONSOLE, "", attempt) == 130
    assert list(load(output)["run"]) == [0, 1]


def test_a_killed_one_leaves_whole_rows_and_no_load(tmp_path: Path) -> None:
    output = tmp_path / "calibration.csv"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench_prep", "calibrate", "--runs", "99", "--budget", "0.2"),
            *("--conditions", "load", "--device", "cpu", "--output", str(output)),
        ],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 600
    while not (output.exists() and len(load(output)) >= 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    child = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    loads = child.read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(load(output)) >= 2
    deadline = time.monotonic() + 300
    while any(is_load(pid) for pid in loads):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_load(pid: str) -> bool:
    try:
        return b"calibrate.load" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_the_load_works_and_ends() -> None:
    with periodic_load(0.02) as pid:
        assert is_load(str(pid))
    assert not is_load(str(pid))


def test_false_verdicts_beyond_chance_end_in_a_warning(tmp_path: Path, trial: Trial) -> None:
    """3 of 30 are beyond one in a hundred, 2 of 30 are not (2.1 % and 0.8 % at least)."""
    same, slower = saying("same", trial), saying("slower", trial)
    for false in (2, 3):

        def attempt(cell: Cell, run: int, *, false: int = false, **more: Any) -> list[Trial]:
            return (slower if run < false else same)(cell, run)

        output = tmp_path / f"{false}.csv"
        if false == 2:
            assert calibrate(calibration(runs=30), output, CONSOLE, "", attempt) == 0
        else:
            with pytest.raises(Inconclusive, match="3 of 30 verdicts are false"):
                calibrate(calibration(runs=30), output, CONSOLE, "", attempt)


def test_no_verdict_at_all(tmp_path: Path, trial: Trial) -> None:
    with pytest.raises(Inconclusive, match="no verdict"):
        calibrate(calibration(), tmp_path / "none.csv", CONSOLE, "", saying("inconclusive", trial))


def test_rows_are_added_whole(tmp_path: Path, trial: Trial) -> None:
    output = tmp_path / "rows.csv"
    append(output, ())
    assert tuple(load(output).columns) == TABLE.names
    append(output, [trial])
    before = output.read_bytes()
    append(output, [replace(trial, run=1, low_pct=None, high_pct=None)])
    assert output.read_bytes().startswith(before)
    assert load(output)["low_pct"].isna().tolist()[-1]
    assert {path.name for path in tmp_path.iterdir()} <= {"rows.csv", ".rows.csv.lock"}


def test_another_file_is_left_alone(tmp_path: Path, trial: Trial) -> None:
    output = tmp_path / "other.csv"
    output.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="expected schema 2 of bench-prep calibrate"):
        append(output, [trial])
    assert output.read_text() == "a,b\n1,2\n"
    with pytest.raises(UsageError, match="does not exist"):
        TABLE.check_writable(tmp_path / "missing" / "deeper" / "rows.csv")


@pytest.mark.parametrize(
    ("conditions", "effects", "text"),
    [
        ("none,storm", "0", "no condition 'storm'"),
        ("none", "0,x", "--effects 0,x"),
        ("none", "-1", "--effects -1"),
        ("none", "nan", "--effects nan"),
        ("none", "", "--effects"),
    ],
)
def test_bad_input(conditions: str, effects: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        cells(conditions, effects)

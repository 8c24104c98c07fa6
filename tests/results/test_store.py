"""Nothing that happens during a write costs a row, old or new."""

from __future__ import annotations

import errno
import gzip
import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

from bench_prep.errors import Missing, UsageError
from bench_prep.results import table
from bench_prep.results.store import steps_path
from tests.results.frames import append, check_writable, load, write_steps


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_round_trip(tmp_path, make_frame) -> None:
    frame = make_frame(
        environment={
            "compared": False,
            "worktree_dirty": True,
            "equality_steps": 70,
            "dispatched_pct": 99.5,
            "device_name": 'a "quoted", name',
            "command": "bench-prep run --block-sizes 16,16 | tee 'ä'",
        },
        tpot_ms=45,
    )
    append(tmp_path / "a.csv", frame)
    pd.testing.assert_frame_equal(load(tmp_path / "a.csv"), frame)


def test_round_trip_of_different_outputs(tmp_path, make_frame) -> None:
    frame = make_frame(equal=False)
    append(tmp_path / "a.csv", frame)
    pd.testing.assert_frame_equal(load(tmp_path / "a.csv"), frame)


def test_append_keeps_the_old_rows_byte_by_byte(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame("one"))
    old = path.read_bytes()
    append(path, make_frame("two"))
    assert path.read_bytes().startswith(old)
    assert list(load(path)["run"]) == ["one", "one", "two", "two"]
    assert path.read_text().count("schema,run") == 1


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame("one"))
    with path.open("rb") as reader:
        start = reader.read(100)
        append(path, make_frame("two"))
        assert b"two" not in start + reader.read()
    assert set(load(path)["run"]) == {"one", "two"}


def test_mode_is_kept_and_a_new_file_follows_the_umask(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    before = os.umask(0o027)
    try:
        append(path, make_frame())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    append(path, make_frame())
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_link_stays_a_link(tmp_path, make_frame) -> None:
    (tmp_path / "real.csv").touch()
    link = tmp_path / "link.csv"
    link.symlink_to("real.csv")
    append(link, make_frame())
    assert link.is_symlink()
    assert len(load(tmp_path / "real.csv")) == 2


def test_other_columns_are_a_fault_of_ours(tmp_path, make_frame) -> None:
    with pytest.raises(ValueError, match="columns"):
        append(tmp_path / "a.csv", make_frame().drop(columns="clock"))


WRITER = """
import sys
from pathlib import Path
from tests.results.frames import append, load
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
frame = load(path.with_name("source.csv"))
for number in range(count):
    append(path, frame.assign(run=f"{name}-{number}"))
"""


def test_two_processes_lose_nothing(tmp_path, make_frame) -> None:
    append(tmp_path / "source.csv", make_frame())
    path = tmp_path / "a.csv"
    count = 25
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(count)])
        for name in ("one", "two", "three")
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    expected = {f"{name}-{n}" for name in ("one", "two", "three") for n in range(count)}
    assert set(load(path)["run"]) == expected
    assert len(load(path)) == 2 * len(expected)
    assert temporaries(tmp_path) == []


SLOW_WRITER = """
import os, sys, time
from pathlib import Path
from tests.results.frames import append, load
path = Path(sys.argv[1])
frame = load(path).assign(run="killed")
write, fsync = os.write, os.fsync
def slow_fsync(descriptor):
    print("written", flush=True)
    time.sleep(600)
def half(descriptor, data):
    if sys.argv[2] == "fsync":
        return write(descriptor, data)
    write(descriptor, data[: len(data) // 2])
    print("written", flush=True)
    time.sleep(600)
os.write, os.fsync = half, slow_fsync
append(path, frame)
"""


@pytest.mark.parametrize("where", ["write", "fsync"])
def test_killed_writer_leaves_the_old_file(tmp_path, make_frame, where) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame("old"))
    old = path.read_bytes()
    writer = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(path), where], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    assert len(temporaries(tmp_path)) == 1, "the kill comes in the middle of the write"
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(60) == -signal.SIGKILL
    writer.stdout.close()
    assert path.read_bytes() == old
    append(path, make_frame("next"))
    assert list(load(path)["run"]) == ["old", "old", "next", "next"]
    assert temporaries(tmp_path) == [], "the next writer clears what the killed one left"


def test_interrupted_writer_leaves_the_old_file(tmp_path, make_frame, monkeypatch) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame())
    old = path.read_bytes()

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append(path, make_frame())
    assert path.read_bytes() == old
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(("call", "nth"), [("write", 1), ("fsync", 1), ("close", 1), ("close", 2)])
def test_full_disk(tmp_path, make_frame, monkeypatch, call, nth, code) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame())
    old = path.read_bytes()
    frame = make_frame()
    real = getattr(os, call)
    calls = itertools.count(1)

    def full(descriptor: int, *data: object) -> object:
        result = real(descriptor, *data)
        if next(calls) == nth:
            raise OSError(code, os.strerror(code))
        return result

    monkeypatch.setattr(os, call, full)
    with pytest.raises(Missing, match="no space left") as caught:
        append(path, frame)
    monkeypatch.undo()
    assert "free some space" in caught.value.remedy
    assert path.read_bytes() == old
    assert temporaries(tmp_path) == []


@pytest.fixture
def tiny_disk(tmp_path):
    """A filesystem of 64 KiB, where we may mount one."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(tiny_disk, make_frame, make_round) -> None:
    path = tiny_disk / "a.csv"
    append(path, make_frame())
    old = path.read_bytes()
    with pytest.raises(Missing, match="no space left"):
        check_writable(path)
    (tiny_disk / "filler").write_bytes(b"x" * 50_000)
    with pytest.raises(Missing, match="no space left"):
        append(path, pd.concat([make_frame()] * 20, ignore_index=True))
    with pytest.raises(Missing, match="no space left"):
        write_steps(steps_path(path, "run-1"), [make_round()] * 100)
    assert path.read_bytes() == old
    assert sorted(child.name for child in tiny_disk.iterdir()) == [".a.csv.lock", "a.csv", "filler"]


def test_a_writer_does_not_wait_for_ever(tmp_path, make_frame, monkeypatch) -> None:
    path = tmp_path / "a.csv"
    monkeypatch.setattr(table, "LOCK_TIMEOUT_S", 0.2)
    with FileLock(tmp_path / ".a.csv.lock"), pytest.raises(UsageError, match="another process"):
        append(path, make_frame())
    assert not path.exists()


def other_schema(path: Path) -> None:
    path.write_text(path.read_text().replace("\n6,", "\n1,"))


def other_column(path: Path) -> None:
    path.write_text(path.read_text().replace(",position,", ",place,"))


def column_missing(path: Path) -> None:
    frame = pd.read_csv(path, dtype=str).drop(columns="command")
    frame.to_csv(path, index=False)


def other_order(path: Path) -> None:
    frame = pd.read_csv(path, dtype=str)
    frame[list(frame.columns[::-1])].to_csv(path, index=False)


def foreign(path: Path) -> None:
    path.write_text("baseline_before_ms,candidate_ms,baseline_after_ms\n0.2,0.1,0.2\n")


def not_a_table(path: Path) -> None:
    path.write_bytes(b"\x1f\x8b\x00\xff")


def no_newline(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def half_a_row(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-120])


def short_row(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"6,run-2,2025\n")


def open_quote(path: Path) -> None:
    text = path.read_text()
    path.write_text(text[: text.rindex('"16,16"') + 4])


def torn_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (other_schema, "expected schema 6 .* found schema 1"),
        (other_column, "expected schema 6 .* found an unknown column place"),
        (column_missing, "expected schema 6 .* found no column command"),
        (other_order, "expected schema 6 .* another order"),
        (foreign, "expected schema 6 .* found no schema column"),
        (not_a_table, "not a CSV"),
        (no_newline, "line 3: the last row is torn"),
        (half_a_row, "line 3: the last row is torn"),
        (short_row, "line 4: the last row is torn"),
        (open_quote, "line 3: the last row is torn"),
        (torn_header, "line 1: the last row is torn"),
    ],
)
def test_files_to_which_nothing_is_added(tmp_path, make_frame, damage, says) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame())
    damage(path)
    old = path.read_bytes()
    for refused in (lambda: check_writable(path), lambda: append(path, make_frame())):
        with pytest.raises(UsageError, match=says) as caught:
            refused()
        assert str(path) in caught.value.message
        assert caught.value.remedy
        assert "\n" not in caught.value.message
    assert path.read_bytes() == old
    assert temporaries(tmp_path) == []


def test_remedy_for_a_torn_row_works(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame("old"))
    append(path, make_frame("torn"))
    half_a_row(path)
    with pytest.raises(UsageError, match="line 5") as caught:
        check_writable(path)
    assert "delete line 5" in caught.value.remedy
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    check_writable(path)
    append(path, make_frame("new"))
    assert list(load(path)["run"]) == ["old", "old", "torn", "new", "new"]


def test_steps(tmp_path, make_round) -> None:
    path = steps_path(tmp_path / "a.csv", "run-1")
    assert path == tmp_path / "a.run-1.steps.csv.gz"
    write_steps(path, [make_round(), make_round((5000, 4000, 6000), clocks=("host", "device"))])
    with gzip.open(path, "rt") as file:
        assert file.readline() == "round,arm,step,host_ns,ready_ns,device_ns\n"
        assert file.readline() == f"0,baseline_before,0,{259_076 - 500},{259_076 + 500},\n"
    frame = pd.read_csv(path)
    assert len(frame) == 2 * 3 * 101
    second = frame[(frame["round"] == 1) & (frame["arm"] == "candidate")]
    assert list(second["host_ns"]) == [4000 + 10 * step for step in range(-50, 51)]
    assert list(second["device_ns"]) == [5000 + 10 * step for step in range(-50, 51)]
    assert second["ready_ns"].isna().all()
    assert list(second["step"]) == list(range(101))


def test_steps_are_whole_or_absent(tmp_path, make_round, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Missing):
        write_steps(tmp_path / "a.csv.gz", [make_round()])
    assert list(tmp_path.iterdir()) == []

"""Logs on a disk: rotated, compressed, cut, and what is no log."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from bench_prep.errors import UsageError
from bench_prep.plugin_log.logs import read_logs
from bench_prep.plugin_log.usage import usage_in
from tests.plugin_log.logs import line, reserved, summary

MINUTES = ("11-30 10:38:48", "12-31 23:59:59", "01-01 00:00:00", "01-02 00:00:00")


def written(folder: Path, *parts: bytes) -> list[Path]:
    """A rotated log: `service.log.3` is the oldest."""
    files = []
    for age, content in enumerate(reversed(parts)):
        file = folder / (f"service.log.{age}" if age else "service.log")
        file.write_bytes(content)
        files.append(file)
    return files


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [0, 0, 1, 2, 3]])
def test_rotated_over_the_end_of_a_year_in_any_order(tmp_path: Path, order: list[int]) -> None:
    """The restart in the second file and the counters that go on in the third need the order."""
    clocks = [f"(APIServer pid=7) INFO {time} [a.py:1] x\n".encode() for time in MINUTES]
    files = written(
        tmp_path,
        clocks[0] + reserved() + summary(100, 200),
        clocks[1] + summary(150, 300) + reserved() + summary(10, 20),
        clocks[2] + summary(160, 320),
        clocks[3] + summary(170, 330),
    )
    usage = usage_in(read_logs([files[index] for index in order]))
    assert usage is not None
    assert (usage.processes, usage.dispatched, usage.decode_steps) == (2, 320, 630)


def test_files_without_times_are_read_as_given(tmp_path: Path) -> None:
    new, old = written(tmp_path, b"[bench-prep] fast path reserved: old\n", b"no line\n")
    new.write_bytes(b"[bench-prep] fast path not used: new\n")
    found = usage_in(read_logs([old, new]))
    assert found is not None and found.not_used == "new"
    found = usage_in(read_logs([new, old]))
    assert found is not None and found.not_used is None


def test_gzip_is_recognised_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "service.log-20261130"
    file.write_bytes(gzip.compress(reserved() + summary(7, 9)))
    usage = usage_in(read_logs([file]))
    assert usage is not None and usage.dispatched == 7


def test_a_log_that_was_emptied_under_its_writer(tmp_path: Path) -> None:
    """`copytruncate`: the writer goes on where it was, behind a hole of zeros."""
    file = tmp_path / "service.log"
    with file.open("wb") as stream:
        stream.seek(3_000_000)
        stream.write(b"\n" + reserved())
    assert usage_in(read_logs([file])) is not None


def test_a_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, reserved() + summary(7, 9))
    os.close(write)
    file = tmp_path / "service.log"
    file.write_bytes(b"")
    usage = usage_in(read_logs([Path(f"/dev/fd/{read}"), file]))
    os.close(read)
    assert usage is not None and usage.dispatched == 7


def test_an_empty_log_has_no_line(tmp_path: Path) -> None:
    assert usage_in(read_logs(written(tmp_path, b""))) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x7fELF\x02\x01\x01\0\0\0" + reserved(), "binary"),
        (reserved().decode().encode("utf-16"), "UTF-16"),
        (gzip.compress(os.urandom(200_000))[:-50_000], "binary"),
        (gzip.compress(reserved() * 9000)[:-20], "cannot be read"),
        (b"\x1f\x8b" + bytes(range(1, 200)), "cannot be read"),
    ],
    ids=["program", "UTF-16", "binary gzip", "cut gzip", "no gzip"],
)
def test_what_is_no_log(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        list(read_logs(written(tmp_path, content)))


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match="cannot be read"):
            list(read_logs([file]))
        with pytest.raises(UsageError, match="cannot be read"):
            list(read_logs([*written(tmp_path, line("x")), file]))

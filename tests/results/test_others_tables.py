"""Tables that people made of ours, folders without locks, and text that a terminal would obey."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pandas as pd
import pytest

from bench_prep.errors import UsageError
from bench_prep.results.read import load
from bench_prep.results.store import TABLE, records
from tests.report.shown import report
from tests.results.frames import append, rows_of

HEADER = "baseline_before_ms,candidate_ms,baseline_after_ms"


def test_whole_numbers_that_pandas_wrote_as_fractions(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame(position=4087))
    frame = pd.read_csv(path)
    frame["position"] = frame["position"].astype(float)
    frame.to_csv(path, index=False)
    assert "4087.0" in path.read_text()
    assert {row.position for row in load(path)} == {4087}


def test_the_header_again(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame())
    path.write_text(path.read_text() * 2)
    with pytest.raises(UsageError, match="line 4: the header again"):
        load(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (HEADER.replace(",", ";").encode() + b"\n0,352;0,101;0,354\n", "semicolons"),
        (b"sep=;\r\n" + HEADER.replace(",", ";").encode() + b"\r\n1;1;1\r\n", "semicolons"),
        (f"{HEADER}\n1,1,1\n".replace(",", "\t").encode("utf-16"), "UTF-16"),
        (f"{HEADER},card\n1,1,1,\u00e4\n".encode("latin-1"), "line 2: not UTF-8"),
    ],
)
def test_exports_of_a_spreadsheet(tmp_path, content, says) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        load(path)


def test_a_row_comes_back_as_it_was(tmp_path, make_frame) -> None:
    rows = rows_of(make_frame(environment={"checked_steps": 600}))
    TABLE.append(tmp_path / "a.csv", records(rows))
    assert load(tmp_path / "a.csv") == rows and rows[0].checked_steps == 600


def test_a_folder_without_locks_is_refused_before_the_run(tmp_path, monkeypatch) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(UsageError, match="cannot be locked: No locks available"):
        TABLE.check_writable(tmp_path / "a.csv")


def test_what_cannot_be_stored_is_kept_beside(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    rows = rows_of(make_frame())
    with pytest.raises(UsageError, match=r"; the run is kept in .*a\.one\.csv"):
        TABLE.keep(path, records(rows), "one", tmp_path / "a.one.steps.csv.gz", b"steps")
    assert load(tmp_path / "a.one.csv") == rows
    assert (tmp_path / "a.one.steps.csv.gz").read_bytes() == b"steps"


@pytest.mark.parametrize("markdown", [False, True])
def test_control_characters_are_escaped(tmp_path, markdown: bool) -> None:
    path: Path = tmp_path / "a.csv"
    path.write_text(f"{HEADER},device_name\n1,1,1,x\x1b]0;title\x07y\x9bz\n")
    text = report([path], markdown)
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert "x1b" in text and "x07" in text and "x9b" in text

"""Reads result CSVs: our own, and anybody's that has at least the three block columns."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from bench_prep.errors import UsageError
from bench_prep.measure.statistics import compare, over_rounds
from bench_prep.measure.verdict import Verdict, effect_of, log_ratio
from bench_prep.results.contradictions import contradiction
from bench_prep.results.rows import effect_cells, figure_cells
from bench_prep.results.schema import (
    BLOCK_COLUMNS,
    BY_NAME,
    READABLE,
    VERDICT_SINCE,
    frame_of,
    parse,
)

_VERDICTS = get_args(Verdict)
_TIMING = {name for name, c in BY_NAME.items() if c.group == "result" and c.kind == "float"}

#: Other commands that write CSVs, each with a column that only its files have.
OTHERS = {
    "sweep": "lap_times_us",
    "steps": "most_saved_us",
    "serve": "tier",
    "calibrate": "others_busy",
}


@dataclass(frozen=True)
class RawTable:
    """A CSV's cells as text. `lines` has the number of the line on which each row starts.

    `torn` is the line of a last row that was certainly not finished: a quote left open, or fewer
    fields than the header has. `unterminated` is the line of a last row, finished or not, that
    does not end in a newline. Both are None for a whole file.
    """

    header: list[str]
    records: list[list[str]]
    lines: list[int]
    torn: int | None
    unterminated: int | None


#: What a pipe gave: it gives nothing a second time.
_from_pipes: dict[Path, bytes] = {}


def read_bytes(path: Path) -> bytes:
    """The file's content, also a pipe's that was read before.

    Raises:
        UsageError: no such file, a folder, or a file that cannot be read.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", f"name the files in it: {path}/*.csv")
    try:
        if path.exists() and not path.is_file():
            return _from_pipes.get(path) or _from_pipes.setdefault(path, path.read_bytes())
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", "check the name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the file") from None


def raw_table(content: bytes, path: Path) -> RawTable:
    """The header and rows of a CSV (RFC 4180, UTF-8); blank lines are skipped.

    Raises:
        UsageError: empty, not a CSV, a repeated column name, or a row before the last one
            whose number of fields is not the header's.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{path} is not a CSV file", "give a file that bench-prep run wrote")
    if not text.strip():
        raise UsageError(f"{path} is empty", "give a file that bench-prep run wrote")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    cells: list[list[str]] = []
    lines: list[int] = []
    start = 1
    torn = None
    try:
        for record in reader:
            if record:
                cells.append(record)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        if str(error) != "unexpected end of data":
            raise UsageError(f"{path}, line {start}: {error}", "correct the line") from None
        torn = start
    if not cells:
        raise UsageError(f"{path} is not a CSV file", "give a file that bench-prep run wrote")
    header = [name.strip() for name in cells.pop(0)]
    lines.pop(0)
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise UsageError(f"{path} has two columns '{repeated[0]}'", "rename or remove one")
    last = torn or (lines[-1] if lines else 1)
    unterminated = None if text.endswith(("\n", "\r")) else last
    for record, line in zip(cells, lines, strict=True):
        if len(record) == len(header):
            continue
        if line == lines[-1] and len(record) < len(header):
            torn = line
            continue
        raise UsageError(
            f"{path}, line {line}: {len(record)} fields where the header has {len(header)}",
            "correct the line",
        )
    return RawTable(header, cells, lines, torn, unterminated)


def torn_row(path: Path, line: int) -> UsageError:
    """The error for a file whose last row was not finished."""
    return UsageError(
        f"{path}, line {line}: the last row is torn (cut off before its end)",
        f"delete line {line}, or complete it and end it with a newline",
    )


def _cells(header: list[str], record: list[str], where: str) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, text in zip(header, record, strict=True):
        if name not in BY_NAME:
            cells[name] = text
            continue
        try:
            value = parse(BY_NAME[name].kind, text)
        except ValueError as error:
            raise UsageError(f"{where}: {name}: {error}", "correct the value") from None
        time = name.startswith(("baseline", "candidate_")) or name == "tpot_ms"
        if isinstance(value, float) and not (math.isfinite(value) and (value > 0 or not time)):
            must = "a number above zero" if time else "a finite number"
            raise UsageError(f"{where}: {name}: '{text}' is not {must}", "correct the value")
        cells[name] = value
    if "schema" in cells and cells["schema"] not in READABLE:
        readable = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
        raise UsageError(
            f"{where}: schema {cells['schema']}, and this bench-prep reads schema {readable}",
            "use the bench-prep version that wrote the file",
        )
    if cells.get("verdict") not in (None, *_VERDICTS):
        raise UsageError(
            f"{where}: verdict: '{cells['verdict']}' is none of {', '.join(_VERDICTS)}",
            "correct the value",
        )
    return cells


def _derived(cells: dict[str, Any], where: str) -> dict[str, Any]:
    """`cells`, completed by whatever follows from the three blocks; what is given wins."""
    if cells.get("equal") is False or cells.get("verdict") == "different":
        known = {name: value for name, value in cells.items() if name not in _TIMING}
        return known | {"equal": False, "verdict": "different"}
    for name in BLOCK_COLUMNS:
        if cells.get(name) is None:
            raise UsageError(f"{where}: {name} is empty", "give the block's median in ms")
    found = contradiction(cells)
    if found is not None:
        raise UsageError(
            f"{where} contradicts itself: {found}",
            "restore the row as the run wrote it"
            if (cells.get("schema") or 0) >= VERDICT_SINCE
            else "correct the values, or empty the cells that follow from the three blocks",
        )
    blocks = tuple(cells[name] for name in BLOCK_COLUMNS)
    derived = figure_cells(over_rounds([compare(*blocks)]), cells.get("tpot_ms"))
    if "schema" not in cells:  # else the effect of its rounds is unknown, or given
        derived |= effect_cells(effect_of([log_ratio(*blocks)]))
    derived["verdict"] = "inconclusive"  # one round settles nothing
    return derived | {name: value for name, value in cells.items() if value is not None}


def other_command(path: Path) -> str:
    """The command that wrote it, if that is another one of bench-prep than `run` and `engine`."""
    header = raw_table(read_bytes(path), path).header
    if not {"schema", "command"} <= {*header}:
        return ""
    return next((name for name, column in OTHERS.items() if column in header), "")


def load(path: Path) -> pd.DataFrame:
    """A result CSV as a table with all of `schema.COLUMNS`, then the file's own other columns.

    Three columns are enough: `baseline_before_ms`, `candidate_ms`, `baseline_after_ms`. The rest
    is derived where it is absent, as from one round; what cannot be known stays empty (NA, or ""
    for texts). Without a `schema` column the row counts as derived and its clock as unknown.

    Raises:
        UsageError: the file and row that cannot be used: no such file, empty, not a CSV, missing
            columns, another schema version, a torn last row, a value that is no number or not
            above zero.
    """
    raw = raw_table(read_bytes(path), path)
    missing = [name for name in BLOCK_COLUMNS if name not in raw.header]
    if missing:
        raise UsageError(
            f"{path} has no column {', '.join(missing)}",
            f"a result CSV has at least {', '.join(BLOCK_COLUMNS)}",
        )
    torn = raw.torn or (raw.unterminated if "schema" in raw.header else None)
    if torn is not None:
        raise torn_row(path, torn)
    if not raw.records:
        raise UsageError(f"{path} has a header and no rows", "run bench-prep run first")
    records = []
    for record, line in zip(raw.records, raw.lines, strict=True):
        where = f"{path}, line {line}"
        records.append(_derived(_cells(raw.header, record, where), where))
    return frame_of(records, extra=tuple(name for name in raw.header if name not in BY_NAME))

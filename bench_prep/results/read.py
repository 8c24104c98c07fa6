"""Reads result CSVs: our own, and anybody's that has at least the three block columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.progress import track

from bench_prep.errors import UsageError
from bench_prep.measure.statistics import compare, over_rounds
from bench_prep.measure.verdict import Verdict, effect_of, log_ratio
from bench_prep.results.contradictions import contradiction
from bench_prep.results.raw import raw_table, read_bytes, torn_row
from bench_prep.results.row import BLOCK_COLUMNS, BY_NAME, READABLE, VERDICT_SINCE, Row
from bench_prep.results.rows import effect_cells, figure_cells
from bench_prep.results.schema import parse

#: So many rows take a second or more, and it is shown how many are left.
_MANY_ROWS = 2000
_VERDICTS = get_args(Verdict)
_TIMING = {name for name, c in BY_NAME.items() if c.group == "result" and c.kind == "float"}

#: Other commands that write CSVs, each with a column that only its files have.
OTHERS = {
    "sweep": "lap_times_us",
    "steps": "most_saved_us",
    "serve": "tier",
    "calibrate": "others_busy",
}


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


def load(path: Path) -> list[Row]:
    """A result CSV as rows, with the file's own other columns as `extra`.

    Three columns are enough: `baseline_before_ms`, `candidate_ms`, `baseline_after_ms`. The rest
    is derived where it is absent, as from one round; what cannot be known stays empty. Without a
    `schema` column the row counts as derived and its clock as unknown.

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
    rows = []
    for record, line in track(
        list(zip(raw.records, raw.lines, strict=True)),
        f"reading {path.name}",
        console=Console(stderr=True, markup=False),
        disable=len(raw.records) < _MANY_ROWS,
        transient=True,
    ):
        where = f"{path}, line {line}"
        cells = _derived(_cells(raw.header, record, where), where)
        known = {name: cells.pop(name) for name in BY_NAME if cells.get(name) is not None}
        extra = {name: str(value) for name, value in cells.items() if name not in BY_NAME}
        rows.append(Row(**known, extra=extra))
    return rows

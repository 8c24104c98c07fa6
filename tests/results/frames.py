"""Rows as a table, to look at whole columns of them, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from bench_prep.results import read
from bench_prep.results.row import BY_NAME, NAMES, Row
from bench_prep.results.store import TABLE, steps_content
from bench_prep.results.table import write

_DTYPES = {"int": "Int64", "float": "float64", "bool": "boolean", "text": "object"}


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """All columns, in order, then those that are not ours."""
    extra = dict.fromkeys(name for row in rows for name in row.extra)
    return pd.DataFrame(
        {
            name: pd.Series(
                [row.cell(name) for row in rows],
                dtype=_DTYPES[BY_NAME[name].kind] if name in BY_NAME else "object",
            )
            for name in (*NAMES, *extra)
        }
    )


def rows_of(frame: pd.DataFrame) -> list[Row]:
    made = []
    for record in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        extra = {name: record.pop(name) for name in list(record) if name not in BY_NAME}
        made.append(Row(**{n: cell for n, cell in record.items() if cell is not None}, extra=extra))
    return made


def all_rows(frames: Iterable[pd.DataFrame]) -> list[Row]:
    return [row for frame in frames for row in rows_of(frame)]


def load(path: Path) -> pd.DataFrame:
    return frame_of(read.load(path))


def append(path: Path, frame: pd.DataFrame) -> None:
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    TABLE.append(path, records)


check_writable = TABLE.check_writable


def write_steps(path: Path, rounds: Sequence) -> None:
    write(path, steps_content(rounds))

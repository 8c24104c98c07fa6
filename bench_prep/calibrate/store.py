"""What is read of calibrations: each verdict once, and none that its row contradicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from bench_prep.calibrate.trial import TABLE
from bench_prep.errors import UsageError
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT, Effect, verdict

#: Where a verdict was made.
ENVIRONMENT = ("cpu_model", "device_name", "python_version", "bench_prep_version")
#: What makes two rows one and the same verdict; another machine's of the same seed is another one.
KEY = (
    *("work", "clock", "condition", "effect_pct", "seed", "run", "margin_pct", "budget_s"),
    *ENVIRONMENT,
)
#: Per cent are written with four decimals.
_ROUNDED = 0.5001e-4


def load(path: Path) -> pd.DataFrame:
    """All rows of a calibration's file, of an earlier version too; none where there is no file.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    records = TABLE.records(path) if path.exists() else []
    frame = pd.DataFrame(records, columns=list(TABLE.names)).fillna(dict.fromkeys(ENVIRONMENT, ""))
    return frame.astype(dict.fromkeys(("low_pct", "high_pct", "change_pct"), float))


def together(files: Sequence[Path]) -> pd.DataFrame:
    """All rows of these files, each file once, under whichever names it is given.

    Raises:
        UsageError: a file that is not there or is something else, a verdict that does not follow
            from its row, or a row that is there twice.
    """
    frames = []
    for file in {file.resolve(): file for file in reversed(files)}.values():
        if not file.is_file():
            raise UsageError(f"there is no file {file}", "give the CSV of a calibration")
        frame = load(file)
        frame["where"] = [f"{file}, line {number}" for number in range(2, len(frame) + 2)]
        frames.append(frame)
    frame = pd.concat(frames[::-1], ignore_index=True)
    for row in frame.to_dict("records"):
        _require_verdict(row)
    repeated = frame[frame.duplicated(list(KEY))]
    if len(repeated):
        again = repeated.iloc[0]
        first = frame[(frame[list(KEY)] == again[list(KEY)]).all(axis=1)].iloc[0]
        raise UsageError(
            f"{again['where']}: the same verdict as {first['where']} "
            f"({again['condition']}, {again['effect_pct']:g} % planted, run {again['run']})",
            "delete one of the lines, or give one of the files; another --seed makes other runs",
        )
    return frame.drop(columns="where")


def _require_verdict(row: Mapping[Any, Any]) -> None:
    """The verdict is one that the rule gives, with what was lost when its numbers were rounded."""
    try:
        value, low, high, margin = (
            float(row[name]) for name in ("change_pct", "low_pct", "high_pct", "margin_pct")
        )
        left_out = int(row["left_out"])
        rounds = int(row["rounds"]) - left_out
    except ValueError as error:
        raise UsageError(f"{row['where']}: {error}", "correct the value") from None
    # As `comparison.judge` decides it.
    nothing = rounds < ROUNDS_FOR_VERDICT or rounds < left_out
    if nothing or math.isnan(low) or math.isnan(high):
        follows = {verdict(Effect(value, None, None, rounds), margin)}
    else:
        follows = {
            verdict(Effect(value + one, low + two, high + three, rounds), margin)
            for one, two, three in product((0.0, -_ROUNDED, _ROUNDED), repeat=3)
        }
    # These two are withheld where the means of the steps contradict them.
    withheld = row["verdict"] == "inconclusive" and bool(follows & {"faster", "same"})
    if row["verdict"] not in follows and not withheld:
        raise UsageError(
            f"{row['where']}: the verdict {row['verdict']} does not follow from the interval "
            f"and the margin ({' or '.join(sorted(follows))})",
            "restore the line as bench-prep calibrate wrote it, or delete it",
        )

"""The CSV of `bench-prep sweep`: one row per point, arm and clock; and how it is read again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench_prep.errors import UsageError
from bench_prep.measure.comparison import judge
from bench_prep.measure.records import Clock, Round
from bench_prep.measure.statistics import Figure, median_figure
from bench_prep.measure.verdict import clocks_of
from bench_prep.results.row import SHARED_ENVIRONMENT, columns_named
from bench_prep.results.schema import described, require_columns
from bench_prep.results.table import Table
from bench_prep.sweep.axes import AXES, Point
from bench_prep.sweep.growth import Growth, growth_of
from bench_prep.sweep.laps import ARMS, lap_times_us

SETTINGS = (
    "position", "block_sizes", "max_model_len", "max_num_reqs", "max_num_tokens", "mrope",
    "prompt_embeds", "candidate",
)  # fmt: skip
#: Of a point on one clock; then of an arm along its axis, the same in all its rows.
_FIGURES = described(
    "result",
    """
    left_out text - why the point has no times
    laps,laps_left_out int laps that count, and others
    steps int steps of each slice of a lap
    time_us,low_us,high_us float us of a step: the median over laps, and its 95 % interval
    lap_times_us text us each lap's, `-` where it does not count
    preempted_pct float % steps from which the kernel took the processor
    clock_cost_ns int ns what the clock shows of an empty step
    speedup,speedup_low,speedup_high float ratio of the point, with its 95 % interval
    verdict text - of the point: faster, slower, same or inconclusive
    growth text - flat, grows, falls or inconclusive
    fastest,slowest int - the two values of the axis between which the time grows most
    ratio,ratio_low,ratio_high float ratio of these two, with its interval for all pairs together
    within_pct float % all points' times are so close together
    """,
)
_IDENTITY = described(
    "identity",
    """
    axis text - what is varied
    value int - of the axis, at this point
    arm text - baseline or candidate; empty where the point was left out
    """,
)
_RUN = described("setting", "points int points of each axis")
COLUMNS = (
    *columns_named("schema", "run", "started"), *_IDENTITY, *columns_named("clock"), *_FIGURES,
    *columns_named("margin_pct", "budget_s"), *_RUN, *columns_named("stopped_by", *SETTINGS),
    *SHARED_ENVIRONMENT,
)  # fmt: skip
#: `lap_times_us` have three decimals.
_NONE = "-"
_TEXTS = [column.name for column in COLUMNS if column.kind == "text"]
TABLE = Table("bench-prep sweep", COLUMNS, 1)


def rows(
    rounds: Mapping[Point, Sequence[Round]],
    left_out: Mapping[Point, str],
    margin: float,
    common: Mapping[str, Any],
    of_point: Mapping[Point, Mapping[str, Any]],
    clock_cost: Mapping[Clock, int],
) -> pd.DataFrame:
    """All rows of a sweep: of each point its rounds, or why it has none.

    `margin` is a fraction; `common` and `of_point` have the columns that rows share.

    Raises:
        ValueError: a column that is none of `COLUMNS`.
    """
    made: list[dict[str, Any]] = []
    for point, taken in rounds.items():
        if not taken:
            continue
        for clock in clocks_of(taken):
            made += _of_clock(point, taken, clock, margin, clock_cost.get(clock))
    for point, reason in left_out.items():
        made.append({"point": point, "left_out": " ".join(reason.split())})
    order = list(AXES)
    made.sort(key=lambda row: (order.index(row["point"].axis), row["point"].value))
    for row in made:
        point = row.pop("point")
        settings = {name: getattr(point.settings, name) for name in SETTINGS}
        settings["block_sizes"] = point.settings.block_sizes_text
        shared = {"schema": TABLE.version, "margin_pct": round(100 * margin, 6), **common}
        row |= shared | settings | {"axis": point.axis, "value": point.value}
        row |= of_point.get(point, {})
    require_columns({name for row in made for name in row}, COLUMNS)
    frame = _frame(made)
    # What the file has is what is judged, so that whoever reads it finds the same.
    for axis, arm, name_of_clock in groups(frame):
        index = _rows_of(frame, axis, arm, name_of_clock).index
        for name, value in _columns(growth_in(frame.loc[index], margin)).items():
            frame.loc[index, name] = value
    return frame


def _frame(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(records, columns=list(TABLE.names))
    frame[_TEXTS] = frame[_TEXTS].astype(object).fillna("")
    return frame


def _of_clock(
    point: Point, taken: Sequence[Round], clock: Clock, margin: float, cost: int | None
) -> Iterator[dict[str, Any]]:
    judged = judge(taken, clock, margin)
    times = [lap_times_us(one, clock) for one in taken]
    counted = sum(not one.left_out for one in taken)
    for arm in ARMS:
        texts = [_NONE if math.isnan(lap[arm]) else f"{lap[arm]:.3f}" for lap in times]
        of_arm = [float(text) for text in texts if text != _NONE]
        blocks = [
            block
            for one in taken
            for block in one.blocks
            if (block.arm == "candidate") == (arm == "candidate")
        ]
        row: dict[str, Any] = {
            "point": point,
            "arm": arm,
            "clock": clock,
            "laps": counted,
            "laps_left_out": len(taken) - counted,
            "steps": len(next(iter(taken[0].blocks[0].samples.values()))),
            "lap_times_us": " ".join(texts),
            "preempted_pct": round(100 * float(np.mean([b.preempted for b in blocks])), 3),
            "clock_cost_ns": cost,
            "verdict": judged.verdict,
        }
        if of_arm:
            figure = median_figure(of_arm)
            row |= _figure(("time_us", "low_us", "high_us"), figure, 3)
        if judged.figures is not None:
            names = ("speedup", "speedup_low", "speedup_high")
            row |= _figure(names, judged.figures.speedup, 4)
        yield row


def _figure(names: tuple[str, str, str], figure: Figure, digits: int) -> dict[str, float | None]:
    values = (figure.median, figure.low, figure.high)
    return {
        name: None if value is None else round(value, digits)
        for name, value in zip(names, values, strict=True)
    }


def groups(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Axis, arm and clock of each group of rows of one sweep that one growth is of."""
    timed = frame[frame["arm"] != ""]
    return list(dict.fromkeys(zip(timed["axis"], timed["arm"], timed["clock"], strict=True)))


def _rows_of(frame: pd.DataFrame, axis: str, arm: str, clock: str) -> pd.DataFrame:
    return frame[(frame["axis"] == axis) & (frame["arm"] == arm) & (frame["clock"] == clock)]


def growth_in(of_arm: pd.DataFrame, margin: float) -> Growth | None:
    """The growth that the laps in the rows of one arm, axis and clock show.

    Raises:
        ValueError: laps that cannot be read.
    """
    times = {}
    for value, text in zip(of_arm["value"], of_arm["lap_times_us"], strict=True):
        laps = [math.nan if part == _NONE else float(part) for part in str(text).split()]
        if any(lap <= 0 or math.isinf(lap) for lap in laps):
            raise ValueError("a time that is not above zero")
        times[int(value)] = laps
    if len(times) != len(of_arm):
        raise ValueError("a point that is there twice")
    # A lap that was interrupted has fewer points.
    whole = min(map(len, times.values()), default=0)
    times = {value: laps[:whole] for value, laps in times.items()}
    return growth_of(times, margin) if len(times) > 1 and whole else None


def _columns(growth: Growth | None) -> dict[str, Any]:
    if growth is None:
        return {"growth": "inconclusive"}

    def rounded(value: float | None, digits: int) -> float | None:
        return None if value is None or math.isinf(value) else round(value, digits)

    return {
        "growth": growth.shape,
        "fastest": growth.fastest,
        "slowest": growth.slowest,
        "ratio": rounded(growth.ratio, 4),
        "ratio_low": rounded(growth.low, 4),
        "ratio_high": rounded(growth.high, 4),
        "within_pct": rounded(100 * growth.within, 2),
    }


def load(path: Path, run: str | None = None) -> pd.DataFrame:
    """The rows of one run of a file that a sweep wrote; of its last one where none is named.

    Raises:
        UsageError: no such file, something else, no such run, or a growth that its laps do not
            show.
    """
    frame = _frame(TABLE.records(path))
    if frame.empty:
        raise UsageError(f"{path} is no CSV of bench-prep sweep with rows", "give another file")
    known = list(dict.fromkeys(frame["run"]))
    if run is not None and run not in known:
        raise UsageError(f"--run: {path} has no run {run}", f"runs: {', '.join(known)}")
    frame = frame[frame["run"] == (run or known[-1])].reset_index(drop=True)
    timed = frame[frame["arm"] != ""]
    for (axis, value, clock), rows_there in timed.groupby(["axis", "value", "clock"]):
        if set(rows_there["arm"]) != set(ARMS):
            raise UsageError(
                f"{path}: {axis} {value}, {clock} time: not both arms",
                "restore the rows as bench-prep sweep wrote them",
            )
    for axis, arm, clock in groups(frame):
        rows_here = _rows_of(frame, axis, arm, clock)
        _require_growth(rows_here, f"{path}: {axis}, {arm}, {clock} time")
    return frame


def _same(expected: Any, found: Any) -> bool:
    if expected is None or pd.isna(found):
        return expected is None and bool(pd.isna(found))
    if isinstance(expected, str):
        return bool(expected == found)
    return math.isclose(expected, float(found), rel_tol=1e-9)


def _require_growth(of_arm: pd.DataFrame, where: str) -> None:
    remedy = "restore the rows as bench-prep sweep wrote them"
    try:
        margin = float(of_arm["margin_pct"].iloc[0]) / 100
        expected = _columns(growth_in(of_arm, margin))
    except ValueError as error:
        raise UsageError(f"{where}: {error}", remedy) from None
    for name, value in expected.items():
        found = set(of_arm[name])
        if not all(_same(value, one) for one in found):
            raise UsageError(
                f"{where}: the {name} {', '.join(map(str, found))} is not what its laps show "
                f"({value})",
                remedy,
            )

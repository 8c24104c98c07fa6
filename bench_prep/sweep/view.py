"""What a sweep shows: how both arms grow along each axis, every point, and what is claimed."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench_prep.measure.verdict import CONFIDENCE
from bench_prep.sweep.axes import AXES
from bench_prep.sweep.growth import laps_needed
from bench_prep.sweep.laps import ARMS, BASELINE, CANDIDATE

#: The clock that the claim is about.
DECISIVE = "ready"
_STYLES = {"flat": "bold green", "grows": "bold", "falls": "bold", "inconclusive": "bold yellow"}


def clocks_in(frame: pd.DataFrame) -> list[str]:
    """The clocks to show, the decisive one first; without a device host time is ready time."""
    found = set(frame["clock"]) - {""}
    if "device" not in found:
        found -= {"host"}
    return [clock for clock in (DECISIVE, "host", "device") if clock in found]


def clock_name(frame: pd.DataFrame, clock: str) -> str:
    """Its name for a reader."""
    return "host" if clock == DECISIVE and "device" not in set(frame["clock"]) else clock


def growth_row(frame: pd.DataFrame, axis: str, arm: str, clock: str) -> pd.Series[Any] | None:
    """A row that has what an arm does along an axis; None where it was not timed."""
    rows = frame[(frame["axis"] == axis) & (frame["arm"] == arm) & (frame["clock"] == clock)]
    return None if rows.empty else rows.iloc[0]


def said(row: pd.Series[Any]) -> str:
    """The verdict of such a row in words and numbers."""
    shape = str(row["growth"])
    if shape in ("grows", "falls"):
        ends = sorted((int(row["fastest"]), int(row["slowest"])))
        return f"{shape} {row['ratio']:.2f}x, {ends[0]} to {ends[1]}"
    if pd.isna(row["within_pct"]):
        return "inconclusive: too few laps"
    return f"{shape} within {row['within_pct']:.1f} %"


def claims(frame: pd.DataFrame) -> list[str]:
    """What is said of the candidate on each clock, and of the baseline on the decisive one."""
    lines = [_claim(frame, CANDIDATE, clock) for clock in clocks_in(frame)]
    lines.append(_claim(frame, BASELINE, DECISIVE))
    broken = [axis for axis in _axes(frame) if not AXES[axis].grows and _grows(frame, axis)]
    if broken:
        lines.append(f"The candidate is not flat in {', '.join(broken)}, where it should be.")
    few = [text for axis in _axes(frame) if (text := _too_few(frame, axis))]
    if few:
        remedy = "give a larger --budget, fewer --axes or fewer --points"
        lines.append(f"Too few laps that count: {', '.join(few)}; {remedy}.")
    return lines


def _too_few(frame: pd.DataFrame, axis: str) -> str:
    """How many laps an axis has and needs; empty where it has them."""
    rows = frame[(frame["axis"] == axis) & (frame["clock"] == DECISIVE)]
    points, laps = rows["value"].nunique(), rows["laps"].min()
    needed = laps_needed(points) if points > 1 else 0
    return f"{axis} has {laps:.0f} and needs {needed}" if laps < needed else ""


def _claim(frame: pd.DataFrame, arm: str, clock: str) -> str:
    by_shape: dict[str, list[str]] = {}
    for axis in _axes(frame):
        row = growth_row(frame, axis, arm, clock)
        if row is not None:
            text = f"{axis}{_range(frame, axis)} ({said(row).partition(' ')[2]})"
            by_shape.setdefault(str(row["growth"]), []).append(text)
    parts = [f"{shape} in {', '.join(by_shape[shape])}" for shape in _STYLES if shape in by_shape]
    return f"The {arm}'s {clock_name(frame, clock)} time: {'; '.join(parts)}."


def _range(frame: pd.DataFrame, axis: str) -> str:
    """The values that a claim is about, where points of the axis were left out."""
    rows = frame[frame["axis"] == axis]
    if not (rows["arm"] == "").any():
        return ""
    values = rows[rows["arm"] != ""]["value"].astype(int)
    return f" from {values.min()} to {values.max()} alone"


def is_inconclusive(frame: pd.DataFrame) -> bool:
    """Whether the candidate's growth along some axis is not known."""
    rows = frame[(frame["arm"] == CANDIDATE) & (frame["clock"] == DECISIVE)]
    return rows.empty or bool((rows["growth"] == "inconclusive").any())


def _grows(frame: pd.DataFrame, axis: str) -> bool:
    row = growth_row(frame, axis, CANDIDATE, DECISIVE)
    return row is not None and row["growth"] in ("grows", "falls")


def _axes(frame: pd.DataFrame) -> list[str]:
    return [name for name in AXES if name in set(frame["axis"])]


def view(frame: pd.DataFrame) -> RenderableType:
    """Everything about one sweep (rows of `store.rows`)."""
    shown: list[RenderableType] = []
    for clock in clocks_in(frame):
        title = f"Growth of {clock_name(frame, clock)} time"
        shown += [Text(""), Text(title, style="bold"), _growth_table(frame, clock)]
    shown += [
        Text(
            "from, to: us per step at the two points that the verdict is about, medians over all "
            "laps; ratio: of the two within each lap that has both, so that those medians can "
            f"differ by another one; its {CONFIDENCE:.1%} interval is for all pairs of points "
            "together.",
            style="dim",
        ),
        Text(""),
        Text(f"Points: {clock_name(frame, DECISIVE)} time, us per step", style="bold"),
        _point_table(frame),
        Text(
            "baseline, candidate: medians over laps, with 95 % intervals; speedup: the median of "
            "each lap's own, against the faster of its two slices of the baseline.",
            style="dim",
        ),
        Text(""),
    ]
    skipped = frame[frame["arm"] == ""]
    shown += [
        Text(f"Left out: {row['axis']} {row['value']}: {row['left_out']}")
        for _, row in skipped.iterrows()
    ]
    shown += [Text(line) for line in claims(frame)]
    return Group(*shown[1:])


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", overflow="fold")
    return table


def _growth_table(frame: pd.DataFrame, clock: str) -> Table:
    table = _table("axis", "arm", "from", "to", "ratio", "verdict", left=2)
    for axis in _axes(frame):
        for arm in ARMS:
            row = growth_row(frame, axis, arm, clock)
            if row is None:
                continue
            verdict = Text(said(row).partition(",")[0], style=_STYLES[str(row["growth"])])
            if pd.isna(row["ratio"]):
                table.add_row(axis, arm, "", "", "", verdict)
                continue
            ends = [
                f"{_time_at(frame, axis, arm, clock, int(row[name]))} at {int(row[name])}"
                for name in ("fastest", "slowest")
            ]
            ratio = f"{row['ratio']:.2f}"
            if not pd.isna(row["ratio_low"]):
                ratio += f" ({row['ratio_low']:.2f}-{row['ratio_high']:.2f})"
            table.add_row(axis, arm, *ends, ratio, verdict)
    return table


def _time_at(frame: pd.DataFrame, axis: str, arm: str, clock: str, value: int) -> str:
    rows = frame[(frame["axis"] == axis) & (frame["arm"] == arm) & (frame["clock"] == clock)]
    return _us(rows[rows["value"] == value]["time_us"].iloc[0])


def _point_table(frame: pd.DataFrame) -> Table:
    table = _table("axis", "value", "baseline", "candidate", "speedup", "laps")
    timed = frame[frame["clock"] == DECISIVE]
    for (axis, value), rows in timed.groupby(["axis", "value"], sort=False):
        by_arm = {row["arm"]: row for _, row in rows.iterrows()}
        first = by_arm[CANDIDATE]
        speedup = "" if pd.isna(first["speedup"]) else f"{first['speedup']:.2f}x"
        cells = [_interval(by_arm[arm]) for arm in ARMS]
        table.add_row(str(axis), str(value), *cells, speedup, str(first["laps"]))
    return table


def _interval(row: pd.Series[Any]) -> str:
    if pd.isna(row["time_us"]):
        return ""
    if pd.isna(row["low_us"]):
        return _us(row["time_us"])
    return f"{_us(row['time_us'])} ({_us(row['low_us'])}-{_us(row['high_us'])})"


def _us(value: Any) -> str:
    return f"{float(value):#.3g}".rstrip(".") if float(value) < 1000 else f"{float(value):.0f}"

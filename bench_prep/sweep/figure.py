"""The figure of a sweep: a panel per axis, both arms with their intervals, as SVG."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import pandas as pd

from bench_prep.errors import Missing
from bench_prep.sweep.axes import AXES
from bench_prep.sweep.laps import ARMS, BASELINE, CANDIDATE
from bench_prep.sweep.view import DECISIVE, clock_name, clocks_in, growth_row, said

#: Colours that colour-blind readers tell apart (Okabe and Ito 2008), and a marker each.
_COLOURS = {BASELINE: "#0072B2", CANDIDATE: "#D55E00"}
_MARKERS = {BASELINE: "s", CANDIDATE: "o"}
_LINES = {DECISIVE: "-", "host": "--", "device": ":"}
_COLUMNS = 3
#: Text stays text, and the same sweep gives the same file.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bench-prep",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def require_matplotlib() -> None:
    """Before anything that takes long.

    Raises:
        Missing: it is not installed.
    """
    if not can_draw():
        raise Missing(
            "--figure: matplotlib is not installed",
            "pip install 'bench-prep[figure]', or draw it later with bench-prep sweep --from FILE",
        )


def svg(frame: pd.DataFrame) -> bytes:
    """The figure of one sweep (rows of `store.rows`)."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = draw(frame)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "bench-prep"})
    return buffer.getvalue()


def draw(frame: pd.DataFrame) -> Any:
    """The same as a matplotlib `Figure`; one of its axes has only the legend."""
    from matplotlib.figure import Figure

    axes = [name for name in AXES if name in set(frame["axis"])]
    clocks = clocks_in(frame)
    rows = -(-(len(axes) + 1) // _COLUMNS)
    figure = Figure(figsize=(11, 0.6 + 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True).flatten()
    for panel, axis in zip(panels, axes, strict=False):
        _panel(panel, frame, axis, clocks)
    handles = panels[0].get_legend_handles_labels()
    for panel in panels[len(axes) :]:
        panel.set_axis_off()
    panels[len(axes)].legend(*handles, loc="center", frameon=False, title=_legend(frame))
    first = frame.iloc[0]
    figure.suptitle(
        f"Input preparation of one decode step: vLLM {first['vllm_version']} "
        f"on {first['device_name']}" + (", M-RoPE" if str(first["mrope"]) == "True" else "")
    )
    return figure


def _panel(panel: Any, frame: pd.DataFrame, axis: str, clocks: list[str]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    titles = []
    for arm in ARMS:
        for clock in clocks:
            rows = frame[
                (frame["axis"] == axis)
                & (frame["arm"] == arm)
                & (frame["clock"] == clock)
                & frame["time_us"].notna()
            ]
            if rows.empty:
                continue
            middle = rows["time_us"].astype(float)
            low = rows["low_us"].astype(float).fillna(middle)
            high = rows["high_us"].astype(float).fillna(middle)
            panel.errorbar(
                rows["value"].astype(int).tolist(),
                middle.tolist(),
                yerr=[(middle - low).clip(0).tolist(), (high - middle).clip(0).tolist()],
                color=_COLOURS[arm],
                marker=_MARKERS[arm],
                markersize=4,
                linestyle=_LINES[clock],
                linewidth=1.2,
                capsize=2.5,
                label=f"{arm}, {clock_name(frame, clock)} time",
            )
        row = growth_row(frame, axis, arm, DECISIVE)
        if row is not None:
            titles.append(f"{arm}: {said(row)}")
    panel.set_title("\n".join(titles), loc="left", fontsize=7.5)
    panel.set_xlabel(AXES[axis].label)
    panel.set_ylabel("us per step")
    values = sorted({int(value) for value in frame[frame["axis"] == axis]["value"]})
    panel.set_xticks(values, [_short(value) for value in values])
    panel.minorticks_off()


def _legend(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    return (
        f"candidate {first['candidate']}\n"
        f"torch {first['torch_version']}, fast path {str(first['fastpath_sha256'])[:12]}\n"
        "medians over laps with 95 % intervals\n"
        "log axes; a host's other work moves both arms"
    )


def _short(value: int) -> str:
    return f"{value // 1024}K" if value >= 1024 and value % 1024 == 0 else str(value)

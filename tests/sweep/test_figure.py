"""What the figure and the tables show is what the rows have."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from bench_prep.errors import Missing
from bench_prep.sweep.axes import AXES, Point, points_of
from bench_prep.sweep.command import show
from bench_prep.sweep.figure import draw, require_matplotlib, svg
from bench_prep.sweep.store import TABLE
from bench_prep.sweep.view import claims, is_inconclusive, said, view
from tests.sweep.synthetic import REFERENCE, cost, frame_of

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return frame_of()


def text_of(frame: pd.DataFrame, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(view(frame))
    return out.getvalue()


def test_a_panel_for_each_axis(frame: pd.DataFrame) -> None:
    panels = draw(frame).axes
    assert [panel.get_xlabel() for panel in panels if panel.axison] == [
        axis.label for axis in AXES.values()
    ]
    for panel, (name, axis) in zip(panels, AXES.items(), strict=False):
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        assert list(panel.get_xticks()) == axis.values(3)
        assert panel.get_ylim() == panels[0].get_ylim()
        shown = {bar.get_label(): bar for bar in panel.containers}
        assert list(shown) == ["baseline, host time", "candidate, host time"]
        for label, bar in shown.items():
            here = frame[(frame["axis"] == name) & (frame["arm"] == label.partition(",")[0])]
            rows = here[here["clock"] == "ready"]
            line, _, (segments,) = bar.lines
            assert list(line.get_xdata()) == list(rows["value"])
            assert list(line.get_ydata()) == pytest.approx(list(rows["time_us"]))
            ends = np.array([segment[:, 1] for segment in segments.get_segments()])
            assert ends == pytest.approx(rows[["low_us", "high_us"]].to_numpy(float))
        title = panel.get_title(loc="left")
        assert title.count("\n") == 1 and "candidate: " in title
        assert ("candidate: grows 2.3" in title) == (name == "groups")


def test_all_clocks_of_a_device() -> None:
    (panel, legend, _) = draw(frame_of(("groups",), device=True)).axes
    styles = {bar.get_label(): bar.lines[0].get_linestyle() for bar in panel.containers}
    assert len(styles) == 6 and not legend.axison
    assert styles["candidate, ready time"] == "-" and styles["candidate, device time"] == ":"


def test_arms_differ_in_more_than_the_colour(frame: pd.DataFrame) -> None:
    lines = [bar.lines[0] for bar in draw(frame).axes[0].containers]
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines})


def test_the_file_is_svg_with_text_and_the_same_each_time(frame: pd.DataFrame) -> None:
    content = svg(frame)
    assert content == svg(frame)
    root = ET.fromstring(content)
    texts = {
        "".join(one.itertext()).strip() for one in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert "Input preparation of one decode step: vLLM 0.32.0 on a processor" in texts
    assert "torch 2.13.0, fast path 0123456789ab" in texts
    assert {axis.label for axis in AXES.values()} <= texts
    assert "256K" in texts


def test_it_is_drawn_from_the_file_again(tmp_path: Path, frame: pd.DataFrame) -> None:
    figure = tmp_path / "sweep.svg"
    TABLE.keep(tmp_path / "sweep.csv", frame.to_dict("records"), "r1", figure, svg(frame))
    out = io.StringIO()
    console = Console(file=out, width=80)
    assert show(tmp_path / "sweep.csv", None, tmp_path / "again.svg", console) == 0
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "sweep.svg").read_bytes()
    said = out.getvalue().replace("\n", "")
    assert said == text_of(frame).replace("\n", "") + f"figure   {tmp_path / 'again.svg'}"


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Missing, match="matplotlib is not installed") as error:
        require_matplotlib()
    assert "bench-prep[figure]" in error.value.remedy


def test_the_claim(frame: pd.DataFrame) -> None:
    candidate, baseline = claims(frame)
    assert re.match(
        r"The candidate's host time: flat in position \(within .* %\), max_num_reqs .*"
        r"max_num_tokens .*block_size \(within .* %\); grows in groups \(2\.\d+x, 1 to 16\)\.$",
        candidate,
    )
    assert baseline.startswith("The baseline's host time: flat in")
    assert not is_inconclusive(frame)
    shown = text_of(frame)
    assert all(line in " ".join(shown.split()) for line in claims(frame))
    cells = re.search(r"groups +candidate +(\S+) at 1 +(\S+) at 16", shown)
    assert cells is not None
    assert [float(cell) for cell in cells.groups()] == pytest.approx([2.2, 5.2], rel=0.03)


def test_the_claim_on_each_clock_of_a_device() -> None:
    frame = frame_of(("groups", "position"), device=True)
    starts = [line.partition(":")[0] for line in claims(frame)]
    assert starts == [
        *(f"The candidate's {clock} time" for clock in ("ready", "host", "device")),
        "The baseline's ready time",
    ]
    assert "device time: flat in position (within 0.0 %), groups" in claims(frame)[2]
    assert text_of(frame).count("Growth of") == 3


def test_a_candidate_that_grows_where_it_should_not() -> None:
    def grows(point: Point, arm: str) -> float:
        return cost(point, arm) * (1 + (arm == "candidate") * np.log2(point.value) / 20)

    frame = frame_of(("max_num_reqs", "groups"), grows)
    assert claims(frame)[-1] == "The candidate is not flat in max_num_reqs, where it should be."
    assert not is_inconclusive(frame)  # it is known, and not what was wanted


def test_too_few_laps_are_said() -> None:
    frame = frame_of(("groups",), laps=5)
    assert is_inconclusive(frame)
    assert said(frame.iloc[0]) == "inconclusive: too few laps"
    assert "inconclusive in groups (too few laps)" in claims(frame)[0]
    needed = "groups has 5 and needs 12; give a larger --budget, fewer --axes or fewer --points."
    assert claims(frame)[-1] == f"Too few laps that count: {needed}"
    assert "Too few laps" in text_of(frame)
    assert "within" in said(frame_of(("groups",), lambda *_: 1000.0, laps=12).iloc[0])


def test_left_out_points_are_named() -> None:
    gone = points_of(("block_size",), 3, REFERENCE)[2]
    frame = frame_of(("block_size",), left_out={gone: "not accepted: 1024"})
    assert "Left out: block_size 1024: not accepted: 1024" in text_of(frame)
    ticks = draw(frame).axes[0].get_xticks()
    assert list(ticks) == [16, 128, 1024]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_figure_is_cut(frame: pd.DataFrame, width: int) -> None:
    shown = text_of(frame, width)
    assert "…" not in shown
    assert all(len(line) <= width for line in shown.splitlines())

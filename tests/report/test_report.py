"""What people see: the golden figures, the labels, the warnings, in tables and in Markdown."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from bench_prep.errors import UsageError
from bench_prep.report.cells import OUTPUT_TOKENS
from bench_prep.report.overview import run_report
from bench_prep.report.sections import NOT_THE_SERVICE
from tests.report.shown import (
    PUBLISHED,
    printed,
    render_report,
    report,
    report_markdown,
    report_sections,
    result_view,
    runs,
    section,
    words,
)
from tests.results.frames import append

#: Ten medians of a candidate whose baseline takes 100,000 ns.
SCATTERED = (98_000, 99_000, *range(100_000, 108_000, 1000))


@pytest.mark.parametrize("markdown", [False, True])
def test_golden(tmp_path, markdown) -> None:
    path = tmp_path / "published.csv"
    path.write_text(PUBLISHED)
    text = report([path], markdown)
    figures = {
        "speedup = baseline / candidate": "2.5576x",
        "saved = baseline - candidate": "0.157388 ms",
        "reduction = 1 - candidate / baseline": "60.9 %",
        "/ baseline ": "0.25 %",
        "share of TPOT = saved / TPOT": "0.35 %",
        "baseline before": "0.259076",
        "baseline after": "0.258436",
    }
    for name, figure in figures.items():
        assert any(name in line and figure in line for line in text.splitlines()), name
    assert NOT_THE_SERVICE in words(text)
    assert "needs 6 rounds" in text


@pytest.mark.parametrize("markdown", [False, True])
def test_tpot_can_be_given_to_the_report(tmp_path, markdown) -> None:
    path = tmp_path / "published.csv"
    path.write_text(PUBLISHED.replace(",tpot_ms", "").replace(",45", ""))
    assert "0.35 %" not in report([path], markdown)
    assert "Give --tpot-ms" in report([path], markdown)
    assert "0.35 %" in report([path], markdown, tpot_ms=45)
    with pytest.raises(UsageError, match="--tpot-ms"):
        report([path], markdown, tpot_ms=0)


def test_own_tpot_wins(tmp_path) -> None:
    path = tmp_path / "published.csv"
    path.write_text(PUBLISHED)
    assert "0.35 %" in report([path], tpot_ms=9)


def test_cumulative_savings(make_frame) -> None:
    text = printed(result_view(make_frame()))
    for tokens in OUTPUT_TOKENS:
        saved = f"{(tokens - 1) * 0.157388:.3f}"
        lines = [line.split() for line in text.splitlines() if line.startswith(f"{tokens} ")]
        assert lines == [[str(tokens), saved, saved]]
    assert OUTPUT_TOKENS == (128, 512, 1024, 2048, 4096)


def test_one_run_shows_its_blocks_machine_and_intervals(make_frame, make_round) -> None:
    rounds = [make_round((200_000, 100_000 + 1000 * n, 200_000)) for n in range(7)]
    environment = {
        "device_name": "NVIDIA H200",
        "vllm_version": "0.26.0",
        "tree_sha256": "0123456789abcdef" * 4,
    }
    text = printed(result_view(make_frame(rounds=rounds, environment=environment)))
    assert "each the median of 7 rounds" in text
    assert ["host", "candidate", "0.103000", "0.102550", "0.103450", "0.103490"] in [
        line.split() for line in text.splitlines()
    ]
    assert "0.094000 to 0.100000" in text
    assert "1.8868 to 2.0000" in text
    assert "47.0 to 50.0" in text
    for fact in ("NVIDIA H200", "0.26.0", "0123456789abcdef", "24576 tokens", "16,16"):
        assert fact in words(text)
    assert "Host time" in text and "Ready time" in text and "Device time" not in text


@pytest.mark.parametrize("single", [True, False])
def test_the_verdict_stands_first_and_the_settings_last(make_frame, single) -> None:
    frames = [make_frame("a")] if single else runs(make_frame)
    titles = [one.title.partition(":")[0] for one in report_sections(frames)]
    # What the rows of several runs are called comes before their verdicts.
    assert titles[:3] == (
        ["Verdict", "Notes", "Blocks"] if single else ["Rows", "Verdicts", "Notes"]
    )
    assert titles[-1] == ("Machine and versions" if single else "Common to all")
    headings = [line[3:] for line in report_markdown(frames).splitlines() if line[:3] == "## "]
    assert [one.partition(":")[0] for one in headings] == titles


def test_one_row_for_both_clocks_without_a_device(make_frame, make_round) -> None:
    without = {"compared": True, "platform": "cpu"}
    same = [replace(make_round(), blocks=tuple(
        replace(block, samples=dict.fromkeys(("host", "ready"), block.samples["host"]))
        for block in make_round().blocks
    ))]  # fmt: skip
    frame = make_frame("a", rounds=same, environment=without)
    text = printed(result_view(frame))
    assert text.count("2.5576x") == 1 and "host = ready" in text
    assert list(frame["clock"]) == ["host", "ready"], "the table itself keeps both"
    other = make_frame("b", rounds=same, environment=without, position=512)
    assert [row[2:5] for row in section([frame, other], "Verdicts").rows] == [
        ("inconclusive", "-60.95 %", "needs 10 rounds")
    ] * 2

    def clocks(frame: pd.DataFrame) -> list[str]:
        return [row[0] for row in section([frame], "Verdict").rows]

    assert clocks(frame) == ["host = ready"]
    assert clocks(make_frame(environment=without)) == ["host", "ready"], "they differ"
    on_device = make_frame(rounds=same, environment=without | {"platform": "cuda"})
    assert clocks(on_device) == ["host", "ready"]


@pytest.mark.parametrize("markdown", [False, True])
def test_a_verdict_by_an_older_rule_is_marked(markdown) -> None:
    results = Path(__file__).resolve().parents[2] / "results"
    path = results / "h200-0.26.0.csv"
    text = words(report([path], markdown))
    assert "faster (old rule)" in text
    assert "Verdict by the old rule: from the drift and the speedup's 95 % interval" in text


def test_todays_verdict_is_not_marked(make_frame, make_round) -> None:
    text = printed(result_view(make_frame(rounds=[make_round()] * 10)))
    assert "faster" in text and "rule" not in text


def warned(make_frame, **options) -> str:
    return words(printed(result_view(make_frame(**options))))


def test_warnings(make_frame, make_round) -> None:
    clean = warned(make_frame, rounds=[make_round()] * 10)
    for sentence in ("no worktree was given", "Partial", "Inconclusive", "not stated", "Notes"):
        assert sentence not in clean
    assert "those of its RECORD, and no worktree was given" in warned(
        make_frame, environment={"compared": False}
    )
    assert "Partial: interrupted" in warned(make_frame, partial=True)
    assert "fell back" in warned(make_frame, environment={"dispatched_pct": 99.9})
    left_out = [make_round()] * 10 + [replace(make_round(), left_out="throttled")]
    assert "not counted, whatever their times: throttled (1 round)" in warned(
        make_frame, rounds=left_out
    )
    few = warned(make_frame)
    assert "Inconclusive (host): 1 round, and a verdict needs 10." in few
    noisy = warned(make_frame, rounds=[make_round((100_000, n, 100_000)) for n in SCATTERED])
    assert (
        "Inconclusive (host): the change lies between -2.00 and +7.00 %, the margin is 1 %."
    ) in noisy
    todo = "What to do: stop other work on the machine"
    for stopped_by, more in (
        ("rounds", ", give more --rounds or leave it out"),
        ("budget", ", give a larger --budget"),
        ("width", ""),
    ):
        text = words(printed(result_view(make_frame().assign(stopped_by=stopped_by))))
        assert f"{todo}{more}, and run again." in text


def test_different_outputs_show_no_times(make_frame) -> None:
    text = printed(result_view(make_frame(equal=False)))
    assert "The outputs differ: no timing is reported." in text
    assert "speedup" not in text
    assert " ms" not in text


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize("single", [True, False])
def test_nothing_is_cut(make_frame, make_round, width, single) -> None:
    rounds = [
        make_round((8_759_076, 3_101_048 + 1000 * n, 8_258_436), ("host", "ready", "device"))
        for n in range(7)
    ]
    frames = [make_frame("a", rounds=rounds, tpot_ms=45)]
    if not single:
        frames += runs(make_frame)
    text = printed(render_report(frames), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    if width == 80:
        for line in report_markdown(frames).splitlines():
            for cell in line.split("|"):
                if cell.strip().replace(".", "").isdigit():
                    assert cell.strip() in text


def test_eighty_columns_keep_every_figure_on_one_line(make_frame, make_round) -> None:
    rounds = [
        make_round((8_759_076, 3_101_048 + 1000 * n, 8_258_436), ("host", "ready", "device"))
        for n in range(7)
    ]
    for one in report_sections([make_frame("a", rounds=rounds, tpot_ms=45), *runs(make_frame)]):
        if one.title not in ("Rows", "Common to all"):
            for row in one.rows:
                widths = [max(len(r[i]) for r in (*one.rows, one.header)) for i in range(len(row))]
                assert sum(widths) + 2 * (len(widths) - 1) <= 80, one.title


PIPE = """
import sys
from pathlib import Path
from rich.console import Console
from bench_prep.report.overview import run_report
run_report([Path(p) for p in sys.argv[2:]], sys.argv[1] == "markdown", Console())
"""


@pytest.mark.parametrize("columns", [None, "80"])
@pytest.mark.parametrize("form", ["tables", "markdown"])
def test_through_a_pipe(tmp_path, make_frame, columns, form) -> None:
    for frame, name in zip(runs(make_frame), ("a", "b", "c"), strict=True):
        append(tmp_path / f"{name}.csv", frame)
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "TERM")}
    if columns:
        environment["COLUMNS"] = columns
    paths = sorted(map(str, tmp_path.glob("*.csv")))
    text = subprocess.run(
        [sys.executable, "-W", "error", "-c", PIPE, form, *paths],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout
    assert "\x1b" not in text and "…" not in text
    assert (text.count("2.5576x"), text.count("2.5423x")) == (3, 3), "host and ready"
    if form == "tables":
        assert max(map(len, text.splitlines())) <= 80


def test_markdown_is_not_wrapped(tmp_path) -> None:
    path = tmp_path / "published.csv"
    path.write_text(PUBLISHED)
    assert NOT_THE_SERVICE in report([path], markdown=True).splitlines()


def test_markdown_tables_are_well_formed(make_frame) -> None:
    frames = [
        make_frame("a", environment={"device_name": "a|b <i>*[x](y)*"}),
        make_frame("b", position=9),
    ]
    text = report_markdown(frames)
    assert "a\\|b \\<i>\\*\\[x](y)\\*" in text
    columns = None
    for line in text.replace("\\|", "").splitlines():
        if line.startswith("|"):
            assert columns in (None, line.count("|"))
            columns = line.count("|")
        else:
            columns = None
    assert text.endswith("\n") and not text.endswith("\n\n")


def test_values_are_no_markup(make_frame) -> None:
    assert "[red]x[/nope]" in printed(
        result_view(make_frame(environment={"device_name": "[red]x[/nope]"}))
    )


def test_nothing_to_report() -> None:
    with pytest.raises(UsageError, match="no results"):
        render_report([])
    with pytest.raises(UsageError, match="no results"):
        run_report([], False, Console(file=io.StringIO()))

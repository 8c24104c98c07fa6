"""Several runs in one view: how rows are sorted, labelled and told apart."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from bench_prep.errors import UsageError
from bench_prep.report.overview import run_report
from bench_prep.report.sections import NOT_THE_SERVICE
from bench_prep.serve.store import TABLE as SERVED
from tests.report.shown import PUBLISHED, printed, render_report, report, runs, section, words
from tests.results.frames import append


def test_rows_are_sorted_by_numbers_and_labelled_by_differences(make_frame) -> None:
    figures = section(runs(make_frame), "Figures")
    assert figures.header[:4] == ("row", "clock", "position", "block sizes")
    assert [row[1:4] for row in figures.rows] == [
        ("host", "512", "16,16"),
        ("ready", "512", "16,16"),
        ("host", "512", "128,16"),
        ("ready", "512", "128,16"),
        ("host", "24576", "16,16"),
        ("ready", "24576", "16,16"),
    ]
    common = dict(section(runs(make_frame), "Common").rows)
    assert common["device"] == "test device"
    assert common["timed steps per block"] == "101 steps"
    assert "position" not in common and "clock" not in common


def test_the_same_clock_of_equal_settings_stands_together(make_frame) -> None:
    frames = [make_frame("a", started="2025-01-01"), make_frame("b", started="2025-01-02")]
    figures = section(frames, "Figures")
    assert figures.header[:3] == ("row", "clock", "started")
    assert [row[1:3] for row in figures.rows] == [
        ("host", "2025-01-01"),
        ("host", "2025-01-02"),
        ("ready", "2025-01-01"),
        ("ready", "2025-01-02"),
    ]


def test_many_differences_go_to_a_legend(make_frame) -> None:
    h200 = {"device_name": "NVIDIA H200", "driver": "580.65.06"}
    bw1000 = {"device_name": "BW1000", "driver": "6.3"}
    frames = [
        make_frame("a", environment=h200),
        make_frame("b", environment=bw1000, mrope=True, warmup=9),
    ]
    legend = section(frames, "Rows")
    assert legend.header == ("row", "clock", "M-RoPE", "untimed steps before", "device")
    assert legend.rows[0][1:] == ("host", "no", "100", "NVIDIA H200")
    assert legend.notes == ("These differ together with the labels: driver.",)
    figures = section(frames, "Figures")
    assert figures.header[:3] == ("row", "clock", "drift")
    assert [row[0] for row in figures.rows] == [row[0] for row in legend.rows]


def test_more_differences_than_fit_become_text(make_frame) -> None:
    other = {"mrope": True, "candidate": "somebody.else.s.package:preparation"}
    tree = {"tree_sha256": "ab" * 32, "wheel_sha256": "cd" * 32}
    frames = [
        make_frame("a", environment={"device_name": "NVIDIA H200", **tree}),
        make_frame("b", environment={"device_name": "BW1000"}, **other),
        make_frame("c", environment={"device_name": "BW1000", **tree}, **other),
    ]
    legend = section(frames, "Rows")
    assert legend.header == ("row", "what differs")
    assert legend.rows[0][1] == (
        "clock: host; M-RoPE: no; candidate: bench_prep.fastpath:attach; device: NVIDIA H200; "
        "tree SHA-256: abababababababab"
    )
    assert legend.rows[1][1].endswith("tree SHA-256: -"), "that it is not stated is a difference"
    assert legend.notes == ("These differ together with the labels: wheel SHA-256.",)


def test_a_fact_labels_rows_only_where_it_tells_them_apart(make_frame) -> None:
    """Equal settings on one device with two drivers: the driver is what differs."""
    frames = [
        make_frame(
            name, environment={"device_name": "NVIDIA H200", "driver": driver, "platform": p}
        )
        for name, driver, p in (("a", "580", "cuda"), ("b", "590", "cuda"))
    ]
    figures = section(frames, "Figures")
    assert figures.header[:3] == ("row", "clock", "driver")
    assert [row[1:3] for row in figures.rows[:2]] == [("host", "580"), ("host", "590")]


def test_runs_without_a_difference_are_told_apart_by_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would not fit into the table
    for name in ("a.csv", "b.csv"):
        Path(name).write_text(PUBLISHED)
    text = report([Path("b.csv"), Path("a.csv"), Path("b.csv")], markdown=True)
    assert text.count("2.5576x") == 2, "a file named twice is read once"
    assert "| row | file |" in text


def test_foreign_and_own_files_together(tmp_path, make_frame) -> None:
    append(tmp_path / "own.csv", make_frame())
    foreign = tmp_path / "foreign.csv"
    foreign.write_text(
        PUBLISHED.replace("baseline_before", "card,baseline_before", 1).replace(
            "0.259076", "BW1000,0.259076"
        )
    )
    text = report([tmp_path / "own.csv", foreign])
    assert text.count("2.5576x") == 2
    assert "position                  24576 tokens (where stated)" in text
    assert "Whether the outputs were equal is not stated (row 3)." in text
    assert "BW1000" in text
    assert "24576.0" not in text and "nan" not in text and "<NA>" not in text


def test_intervals_in_the_overview(make_frame, make_round) -> None:
    rounds = [make_round((200_000, 100_000 + 1000 * n, 200_000)) for n in range(7)]
    frames = [make_frame("a", rounds=rounds), make_frame("b", position=512)]
    rows = section(frames, "95 %").rows
    assert rows[0][-3:] == ("needs 6 rounds",) * 3
    assert rows[2][-3:] == ("1.8868 to 2.0000", "0.094000 to 0.100000", "47.0 to 50.0")


def test_overview_warns_by_row(make_frame) -> None:
    text = words(
        printed(render_report([make_frame("a"), make_frame("b", position=9, equal=False)]))
    )
    assert "The outputs differ: no timing is reported (row 1, row 2)." in text
    assert NOT_THE_SERVICE in text


def test_rows_of_another_command_are_named_and_left_out(tmp_path, make_frame, capsys) -> None:
    result, served = tmp_path / "run.csv", tmp_path / "serve.csv"
    swept = Path(__file__).resolve().parents[2] / "results" / "sweep-cpu-0.32.0.csv"
    make_frame("a").to_csv(result, index=False)
    row = dict.fromkeys(SERVED.names, "") | {
        "schema": 1,
        "tier": "16-32",
        "baseline_before_ms": 1.5,
    }
    pd.DataFrame([row]).to_csv(served, index=False)
    out = io.StringIO()
    run_report([swept, result, served], False, Console(file=out, width=200))
    assert "24576" in out.getvalue()
    sweep = f"{swept} is shown by bench-prep sweep --from {swept}"
    serve = f"{served} is of bench-prep serve, which showed it when it ended"
    assert capsys.readouterr().err == f"not shown: {sweep}\nnot shown: {serve}\n"
    with pytest.raises(UsageError, match="no results of bench-prep run or engine") as caught:
        run_report([served, swept], False, Console(file=out))
    assert caught.value.remedy == f"{serve}; {sweep}"


def test_rows_of_other_files_and_versions_are_told_apart(tmp_path, make_frame, monkeypatch) -> None:
    """Also where the settings tell the rows apart."""
    monkeypatch.chdir(tmp_path)
    for name, version, position in (("a", "0.26.0", 9), ("b", "0.32.0", 8)):
        environment = {"device_name": "one", "vllm_version": version}
        frame = make_frame(name, position=position, environment=environment)
        append(tmp_path / f"{name}.csv", frame)
    text = words(report([Path("a.csv"), Path("b.csv")]))
    assert "row clock position vLLM" in text
    assert "Rows of b.csv: 1-2, of a.csv: 3-4." in text
    assert "Rows of" not in report([Path("a.csv")])

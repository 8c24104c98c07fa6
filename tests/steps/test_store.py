"""The CSV of steps, and what is refused before an engine starts."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from bench_prep.cli.app import app
from bench_prep.errors import UsageError
from bench_prep.measure.comparison import Judgement
from bench_prep.measure.verdict import Effect
from bench_prep.steps.parts import OWN
from bench_prep.steps.result import Found, ProbeCost
from bench_prep.steps.store import TABLE, rows, trace_path
from bench_prep.steps.view import bar, view
from tests.steps.test_limits import ONE_THREAD, arm


def found(counted: float = 0.002) -> Found:
    cost = ProbeCost(counted, Effect(0.01, -0.01, 0.015, 30))
    return Found([arm(*ONE_THREAD, device=(400, 450))], {OWN: cost}, (300.0, 250.0), None)


RECORDS = rows(found(), {"run": "run"}).to_dict("records")


def test_rows_are_added_whole(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    for number in range(2):
        TABLE.check_writable(path)
        frame = rows(found(), {"run": f"run{number}", "model": "a, b", "vllm_version": "0.32.0"})
        trace = trace_path(path, f"run{number}")
        TABLE.keep(path, frame.to_dict("records"), f"run{number}", trace, b"{}")
        assert trace.read_bytes() == b"{}"
    frame = pd.read_csv(path)
    assert tuple(frame.columns) == TABLE.names
    parts = ["step", "step without probes", "prepare inputs", "the rest", "kernels and copies"]
    assert list(frame["part"]) == [*parts, "own gaps", "idle"] * 2
    rest = frame.iloc[3]
    assert (rest["median_us"], rest["share_pct"], rest["most_saved_us"]) == (0.5, 50, 0.5)
    assert (rest["probe_cost_pct"], rest["probe_cost_counted_pct"]) == (1, 0.2)
    assert pd.isna(rest["effect_pct"])
    assert frame.iloc[6]["median_us"] == 0.55
    with pytest.raises(ValueError, match="not columns: nonsense"):
        rows(found(), {"nonsense": 1})


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "no table", "{}", '"'])
def test_another_file_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(content)
    with pytest.raises(UsageError):
        TABLE.check_writable(path)
    with pytest.raises(UsageError, match=r"; the run is kept in .*/other.run.csv"):
        TABLE.keep(
            path,
            RECORDS,
            "run",
            trace_path(path, "run"),
            b"{}",
        )
    assert path.read_text() == content
    assert trace_path(path, "run").read_bytes() == b"{}"
    assert len(TABLE.records(tmp_path / "other.run.csv")) == len(RECORDS)


def test_a_torn_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    TABLE.append(path, RECORDS)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(UsageError, match="the last row is torn"):
        TABLE.check_writable(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt-tokens", "1000", "--max-model-len", "1024"], "leaves no room"),
        (["--stretch", "19", "--rounds", "10"], "fewer than 200 steps"),
        (["--stretch", "1000"], "more steps than can be recorded"),
        (["--weights"], "no folder with"),
        (["--output", "no/such/folder.csv"], "does not exist"),
        (["--output", "."], "not an ordinary file"),
    ],
)
def test_refused_before_any_engine_starts(arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        app(["steps", "Qwen2ForCausalLM", *arguments], standalone_mode=False)


def test_bars() -> None:
    assert [bar(share, 4) for share in (0, 0.03, 0.5, 0.53, 1, 2)] == [
        *("", "▏", "██", "██▏", "████", "████"),
    ]


@pytest.mark.parametrize(("counted", "warned"), [(0.002, False), (0.021, True)])
def test_probes_that_cost_too_much_are_named(counted: float, warned: bool) -> None:
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(view(found(counted)))
    text = " ".join(captured.get().split())
    assert "Inconclusive" not in text
    assert ("More than 2 %" in text) == warned
    assert "kernels and copies" in text and "Who waits: the" in text


@pytest.mark.parametrize(
    ("effect", "withheld", "why"),
    [
        (Effect(0.01, -0.01, 0.03, 30), "", "the interval shows neither a change nor one within 1"),
        (Effect(0.01, None, None, 9), "", "a verdict needs 10 rounds"),
        (Effect(-0.1, -0.11, -0.09, 30), "by the mean it is another", "by the mean it is another"),
    ],
)
def test_no_verdict_has_a_remedy_and_an_exit_code(effect: Effect, withheld: str, why: str) -> None:
    one = replace(found(), change=Judgement("inconclusive", effect, None, withheld))
    assert one.inconclusive and not found().inconclusive
    console = Console(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(view(one))
    text = " ".join(captured.get().split())
    assert f"Inconclusive: {why}" in text and "Give more --rounds." in text

"""One real engine, whole: a step with all its parts, twice, in the CSV and in the trace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from bench_prep.cli.app import app
from bench_prep.measure.machine import cpu_model
from bench_prep.steps.parts import FAST, OWN
from bench_prep.steps.store import TABLE, trace_path
from tests.steps.test_chrome import assert_nested

pytestmark = pytest.mark.vllm

#: Parts of the runner's thread, on every platform.
WORK = [
    *("update states", "prepare inputs", "attention metadata", "other preparation"),
    *("forward launch", "logits", "sample", "bookkeeping"),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The CSV of one run of the command, and what it showed."""
    output = tmp_path_factory.mktemp("steps") / "steps.csv"
    # Of two requests: the first one's end, and the prompt of the second, are between the steps.
    arguments = ["--prompt-tokens", "100", "--max-model-len", "1024", "--eager"]
    plan = ["--stretch", "20", "--rounds", "10", "--output", str(output)]
    done = CliRunner().invoke(app, ["steps", "Qwen2ForCausalLM", *arguments, *plan])
    inconclusive = (pd.read_csv(output)["verdict"] == "inconclusive").any()
    assert done.exit_code == (4 if inconclusive else 0), done.output
    return output, done.output


@pytest.fixture(scope="module")
def frame(ran: tuple[Path, str]) -> pd.DataFrame:
    return pd.read_csv(ran[0])


def test_every_part_of_both_arms_has_its_row(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == TABLE.names
    assert list(dict.fromkeys(frame["arm"])) == [OWN, FAST]
    for arm, steps in ((OWN, 400), (FAST, 200)):
        rows = frame[frame["arm"] == arm].set_index("part")
        others = {"step", "step without probes", "schedule", "output handling"}
        assert others | set(WORK) <= set(rows.index)
        # A step between two requests does not count.
        assert (rows["steps"] >= 0.97 * steps).all()
        assert (rows["p5_us"] <= rows["median_us"]).all()
        assert (rows["median_us"] <= rows["p95_us"]).all()
        assert (rows.loc[WORK, "median_us"] > 0).all()
        assert 11 <= rows["records_per_step"].iloc[0] <= 18
    # vLLM pins its worker on the CPU; the machine is the one that `run` names.
    assert (frame["cpu_model"] == cpu_model()).all()
    if (frame["platform"] == "cpu").all():
        assert (frame["device_name"] == cpu_model()).all()
    else:
        assert frame["device_name"].notna().all()
    assert (frame["equality_steps"] > 150).all()


def test_each_stage_is_said_as_it_passes(ran: tuple[Path, str]) -> None:
    stages = [line[:8].strip() for line in ran[1].splitlines() if "..." not in line[:13]]
    wanted = ["sources", "launch", "equal", "steps", "engine", "result"]
    assert [name for name in stages if name in wanted] == wanted


def test_the_parts_fill_the_step(frame: pd.DataFrame) -> None:
    """Medians do not add up exactly; means of the same steps would."""
    for arm in (OWN, FAST):
        rows = frame[frame["arm"] == arm].set_index("part")
        where = rows.loc["prepare inputs", "where"]
        along = rows[rows["where"] == where]
        step = rows.loc["step", "median_us"]
        assert 0.6 * step < along["median_us"].sum() < 1.2 * step
        most = along["most_saved_us"]
        assert (most.isna() | (most <= along["median_us"])).all()


@pytest.mark.gpu
def test_the_device_has_its_rows(ran: tuple[Path, str], frame: pd.DataFrame) -> None:
    for arm in (OWN, FAST):
        rows = frame[frame["arm"] == arm].set_index("part")
        assert rows.loc["prepare inputs", "where"] == "host"
        assert rows.loc["kernels and copies", "median_us"] > 0
        assert rows.loc["idle", "median_us"] >= 0
        assert "device busy" in rows.loc["step", "waits"]
    trace = json.loads(trace_path(ran[0], frame["run"].iloc[0]).read_text())
    launched = [one for one in trace["traceEvents"] if "launched_us" in one.get("args", {})]
    assert {one["pid"] for one in launched} == {1, 2}
    # A kernel begins after its launch, in a step that is shown.
    assert all(one["ts"] >= one["args"]["launched_us"] >= 0 for one in launched)


def test_what_is_shown(ran: tuple[Path, str]) -> None:
    for text in ("vLLM's own preparation", "With the fast path", "Who waits:", "Probes:"):
        assert text in ran[1]
    assert "The fast path changes the step by" in ran[1]


def test_the_trace_opens_and_nests(ran: tuple[Path, str], frame: pd.DataFrame) -> None:
    path = trace_path(ran[0], frame["run"].iloc[0])
    assert f"ui.perfetto.dev in {path}" in ran[1]
    trace = json.loads(path.read_text())
    events: list[dict[str, Any]] = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    assert {one["name"] for one in events} >= {"schedule", *WORK} - {"other preparation"}
    assert {one["pid"] for one in events} == {1, 2}
    assert_nested(events)
    for process in (1, 2):
        steps = [one for one in events if (one["pid"], one["tid"]) == (process, 0)]
        assert 10 <= len(steps) <= 32
        for one, following in pairwise(steps):
            assert one["ts"] + one["dur"] == pytest.approx(following["ts"])

"""The whole run on the real vLLM, and what it catches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from bench_prep.results.row import NAMES
from tests.results.frames import load

from .conftest import SHORT, Bench, Done, interrupted

pytestmark = pytest.mark.vllm
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def finished(done: Done, output: Path) -> pd.DataFrame:
    """The rows of the run that has just been written to `output`, checked."""
    rows = load(output)
    rows = rows[rows["run"] == rows["run"].iloc[-1]]
    decisive = rows[rows["clock"] == "ready"].iloc[0]
    # So few steps prove nothing on a busy machine, and the run has to say so.
    assert done.code == (4 if decisive["verdict"] == "inconclusive" else 0), done.err
    assert done.err == ""
    assert set(rows["clock"]) >= {"host", "ready"}
    assert rows["equal"].all()
    assert not rows["partial"].any()
    for column in ("baseline_before_ms", "candidate_ms", "baseline_after_ms", "speedup"):
        assert (rows[column] > 0).all()
    return rows


def test_the_whole_run(bench: Bench, tmp_path: Path) -> None:
    done = bench("run", *SHORT, "--tpot-ms", "45", "--output", "results.csv")
    rows = finished(done, tmp_path / "results.csv")

    words = (
        line.split()[0]
        for line in done.out.splitlines()
        if re.match(r"[a-z]{4,7}  +(?!\.\.\. )\S", line)
    )
    stages = list(dict.fromkeys(words))  # a table has a column `state`, too
    order = ["wheel", "sources", "launch", "state", "equal", "time", "result"]
    assert [name for name in stages if name in order] == order
    assert "A component's speedup is not the service's." in " ".join(done.out.split())

    assert tuple(rows.columns[: len(NAMES)]) == NAMES
    one = rows.iloc[0]
    assert (one["position"], one["block_sizes"], one["max_model_len"]) == (24576, "16,16", 32768)
    assert (one["warmup"], one["iters"], one["rounds"]) == (2, 20, 1)
    assert one["candidate"] == "bench_prep.fastpath:attach"
    assert one["dispatched_pct"] == 100
    assert one["boundaries_crossed"] >= 6  # three of each group
    assert one["share_of_tpot_pct"] == pytest.approx(100 * one["saved_ms"] / 45)
    assert not one["compared"]
    assert "run --rounds 1 --iters 20" in one["command"]
    assert (rows["clock_cost_ns"] > 0).all()
    state = json.loads(one["machine_state"])
    assert state["before"]["at_s"] < state["after"]["at_s"]
    assert state["before"]["threads"] == int(state["before"]["omp_num_threads"])
    assert "Machine while it timed" in done.out

    (steps,) = tmp_path.glob("results.*.steps.csv.gz")
    assert one["run"] in steps.name
    kept = pd.read_csv(steps)
    columns = ["round", "arm", "step", "host_ns", "ready_ns", "device_ns", "preempted"]
    assert list(kept.columns)[: len(columns)] == columns
    assert kept.groupby("arm")["step"].apply(list).to_dict() == {
        arm: list(range(20)) for arm in ("baseline_after", "baseline_before", "candidate")
    }
    host = rows[rows["clock"] == "host"].iloc[0]
    candidate = kept[(kept["arm"] == "candidate") & (kept["preempted"] == 0)]["host_ns"]
    assert host["candidate_ms"] == pytest.approx(candidate.median() / 1e6)

    visible = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert visible == {"results.csv", steps.name}


def test_two_runs_in_one_file_and_one_view(bench: Bench, tmp_path: Path) -> None:
    """Other groups, both branches of the kernel, and both ends of the model's length."""
    output = tmp_path / "results.csv"
    done = bench("run", *SHORT, "--block-sizes", "16,32", "--mrope", "--position", "32766",
                 "--output", output)  # fmt: skip
    rows = finished(done, output)
    assert (rows["block_sizes"] == "16,32").all()
    assert rows["mrope"].all()
    assert "block sizes 16,32, M-RoPE" in done.out

    done = bench("run", *SHORT, "--block-sizes", "16", "--prompt-embeds", "--position", "1",
                 "--max-model-len", "64", "--iters", "100", "--rounds", "10", "--margin", "3",
                 "--output", output)  # fmt: skip
    rows = finished(done, output)
    assert (rows["block_sizes"] == "16").all()
    assert (rows["rounds"] + rows["rounds_left_out"] == 10).all()
    assert (rows["margin_pct"] == 3).all()
    assert (rows["stopped_by"] == "rounds").all() and rows["budget_s"].isna().all()
    assert rows["prompt_embeds"].all()

    assert load(output)["run"].nunique() == 2
    shown = bench("report", output)
    assert shown.code == 0, shown.err
    assert "32766" in shown.out
    assert "|" in bench("report", "--markdown", output).out


def test_the_smallest_candidate(bench: Bench, tmp_path: Path) -> None:
    output = tmp_path / "results.csv"
    done = bench("run", "--iters", "40", "--warmup", "2", "--budget", "2", "--candidate",
                 "examples/same_path.py:attach", "--output", output,
                 cwd=EXAMPLES.parent)  # fmt: skip
    rows = finished(done, output)
    assert set(rows["stopped_by"]) <= {"width", "budget"}
    assert (rows["budget_s"] == 2).all()
    assert (rows["iters"] <= 40).all()
    assert (rows["candidate"] == "examples/same_path.py:attach").all()
    assert rows["dispatched_pct"].isna().all()


@pytest.mark.usefixtures("same_files")
def test_a_wrong_slot_is_caught(bench: Bench, tmp_path: Path) -> None:
    done = bench("run", *SHORT, "--candidate", "examples/wrong_slot.py:attach",
                 "--output", tmp_path / "results.csv", cwd=EXAMPLES.parent)  # fmt: skip
    done.refused(3, "outputs differ at position 24576: ")
    found = re.search(r"slot_mapping\S*\[0\]: expected (\d+), found (\d+)", done.err)
    assert found is not None, done.err
    assert found[1] != found[2]
    assert "speedup" not in done.out


@pytest.mark.usefixtures("same_files")
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "def attach(runner):\n"
            "    def prepare(output, scheduled):\n"
            "        return 1 / 0\n"
            "    return prepare\n",
            2,
            ["mine.py:attach raised ZeroDivisionError", "(mine.py, line 3)"],
        ),
        (
            "class attach:\n"
            "    dispatched = 0\n"
            "    def __init__(self, runner):\n"
            "        self.own, self.fallbacks = runner._prepare_inputs, {'not today': 3}\n"
            "    def __call__(self, output, scheduled):\n"
            "        return self.own(output, scheduled)\n",
            6,
            ["left every step to vLLM's own path", "not today"],
        ),
        ("def attach(runner):\n    return 3\n", 2, ["returned int, which cannot be called"]),
        (
            "def attach(runner):\n"
            "    from vllm.v1.worker.block_table import BlockTable\n"
            "    BlockTable.compute_slot_mapping = lambda *arguments: None\n"
            "    return runner._prepare_inputs\n",
            2,
            ["changes vllm.v1.worker.block_table.BlockTable.compute_slot_mapping, which the base"],
        ),
        (
            "def attach(runner):\n"
            "    own, book, later = runner._prepare_inputs, runner._bookkeeping_sync, []\n"
            "    result = []\n"
            "    def prepare(output, scheduled):\n"
            "        if not result:\n"
            "            result.append(own(output, scheduled))\n"
            "        else:\n"
            "            later.append((output, scheduled))\n"
            "        return result[0]\n"
            "    def bookkeeping(*arguments):\n"
            "        while later:\n"
            "            own(*later.pop())\n"
            "        return book(*arguments)\n"
            "    runner._bookkeeping_sync = bookkeeping\n"
            "    return prepare\n",
            2,
            ["replaces _bookkeeping_sync of its runner, which runs between the timed calls"],
        ),
    ],
    ids=["raises", "prepares nothing", "not callable", "changes both arms", "works after the step"],
)
def test_a_candidate_that_cannot_be_timed(
    bench: Bench, tmp_path: Path, text: str, code: int, words: list[str]
) -> None:
    mine = tmp_path.parent / f"{tmp_path.name}-candidate"
    mine.mkdir()
    (mine / "mine.py").write_text(text)
    bench("run", *SHORT, "--candidate", mine / "mine.py:attach").refused(code, *words)


@pytest.mark.usefixtures("same_files")
def test_a_candidate_whose_module_is_missing(bench: Bench) -> None:
    done = bench("run", "--candidate", "no_such_module:attach")
    done.refused(2, "--candidate no_such_module:attach cannot be loaded", "ModuleNotFoundError")


#: vLLM's own path, which says when the timed block with a given number begins.
WATCHED = """
import os
from pathlib import Path

class attach:
    def __init__(self, runner):
        self.own = runner._prepare_inputs
        self.requests = 0
    def __call__(self, output, scheduled):
        if output.scheduled_new_reqs:
            self.requests += 1  # one for the proof, then one for each slice
            if self.requests == 1 + {number}:
                Path({place!r}).with_suffix(".tmp").write_text(f"{{os.getpid()}} {{os.getcwd()}}")
                Path({place!r}).with_suffix(".tmp").rename({place!r})
        return self.own(output, scheduled)
"""


def interrupted_in_slice(number: int, folder: Path, environment: dict[str, str]) -> Done:
    """A run that gets a Ctrl-C when the candidate's slice with this number has begun."""
    begun = folder / "begun"
    (folder / "watched.py").write_text(WATCHED.format(number=number, place=str(begun)))
    arguments = ["run", "--rounds", "1000", "--iters", "200", "--warmup", "2",
                 "--candidate", "watched.py:attach", "--output", "results.csv"]  # fmt: skip
    done, (_, child_folder) = interrupted(arguments, folder, environment, begun)
    assert Path(child_folder).parent == Path("/tmp")
    assert not Path(child_folder).exists()
    return done


def test_ctrl_c_keeps_the_finished_rounds(tmp_path: Path, environment: dict[str, str]) -> None:
    done = interrupted_in_slice(60, tmp_path, environment)
    assert done.code == 130, done.err
    rows = load(tmp_path / "results.csv")
    assert rows["partial"].all()
    assert (rows["rounds"] >= 1).all()
    assert (rows["rounds"] < 1000).all()
    assert "Partial: interrupted" in done.out
    (steps,) = tmp_path.glob("results.*.steps.csv.gz")
    assert len(pd.read_csv(steps)) == 3 * 200 * rows["rounds"].iloc[0]


def test_ctrl_c_before_a_round_is_finished(tmp_path: Path, environment: dict[str, str]) -> None:
    done = interrupted_in_slice(1, tmp_path, environment)
    assert done.code == 130
    assert done.err == "error: interrupted; nothing was written\n"
    assert {path.name for path in tmp_path.iterdir()} == {"watched.py", "begun"}

"""Each child, ended at each of its events: its parent takes nothing for done that is not."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench_prep.child import launch
from bench_prep.child.channel import Event
from bench_prep.child.parent_end import Child
from bench_prep.decode.events import Imported, State
from bench_prep.engine import events as of_engine
from bench_prep.engine.vllm import launch as engine_launch
from bench_prep.errors import BenchPrepError
from bench_prep.measure.records import ARMS, Block, Round
from bench_prep.measure.state import MachineState, Span
from bench_prep.prove.model import events as of_model
from bench_prep.prove.model import run as engine_run
from bench_prep.prove.source import command as prove_source
from bench_prep.prove.source import events as of_source
from bench_prep.run import events as of_run
from bench_prep.run import progress
from bench_prep.serve import events as of_serve
from bench_prep.settings import RunSettings
from bench_prep.stages import Stages
from bench_prep.steps import events as of_steps
from bench_prep.steps.stretches import Stretch
from bench_prep.sweep import events as of_sweep
from tests.child.speaks import SPEAKS

HERE = {"vllm_version": "0", "device_name": "none", "platform": "cpu"}
BEFORE, CANDIDATE, AFTER = (
    Block(arm, {"host": [9], "ready": [9], "preempted": [0]}) for arm in ARMS
)
ROUND = Round((BEFORE, CANDIDATE, AFTER))
SPAN = Span(MachineState(0.0), MachineState(1.0))
DIGESTS = of_run.Digests({"ids": "1"}, [], {"ids": 1})
#: Everything that each process sends, in order.
TOLD: dict[str, list[Event]] = {
    "run": [
        Imported("vllm"),
        of_run.Floor({"host": 1}),
        State(HERE),
        of_run.Equal(3, 1, 7),
        of_run.ClockCost({"host": 1}),
        of_run.OnlyInCandidate(["slots"]),
        of_run.Timed(ROUND, SPAN, None, 1, 2, 3),
        of_run.Stopped("width"),
    ],
    "arm": [
        Imported("vllm"),
        of_run.Ready(HERE, 9),
        DIGESTS,
        of_run.Slice({"host": [1]}, {"collections": 0}, [DIGESTS], {"ids": "1"}, 5, 1),
        of_run.StepSums([(1, 2)]),
        of_run.Machine(MachineState(0.0)),
        of_run.Located("ids[0]"),
        of_run.Obeyed(),
    ],
    "engine": [
        of_engine.Loaded(HERE, {"mrope": False}),
        of_engine.Compared(200),
        of_engine.Rounds([ROUND], [SPAN]),
        of_engine.Stopped("width"),
    ],
    "steps": [
        of_steps.Recordable(HERE, {"mrope": False}, (1.0, 2.0), True),
        of_engine.Compared(200),
        of_steps.Recorded([Stretch("own", True, 0)], [(5, 0)]),
        of_steps.Profiled("own", [(5, 0)], 3),
    ],
    "sweep": [
        Imported("vllm"),
        State(HERE),
        of_sweep.LeftOut("groups", 2, "too large"),
        of_sweep.EqualAt("groups", 1, 3, 1),
        of_sweep.Proved(7, {"host": 1}, 2.0),
        of_sweep.Lap("groups", 1, ROUND, 2, 100.0),
        of_sweep.Ended("width"),
    ],
    "twins": [
        Imported("vllm"),
        of_source.Begun(HERE, "abcdef", ["small"], False),
        of_source.Progress("small", 10, 5),
        of_source.Proven({"steps": 10}, [], 1.0, None),
    ],
    "model": [
        of_model.Facts({"device": "cpu"}, "0"),
        of_model.Outputs(0, "greedy", [{"tokens": [1]}], None),
        of_model.Fault(0, 96, [{"tokens": [2]}]),
    ],
    "client": [
        of_serve.ClientReady(HERE),
        of_serve.Answered(
            0.1, 0.2, [0.1], "a", "", 200, "", [1], [None], [1], "stop", True, 1, 1, ""
        ),
    ],
}
CUTS = [(name, number) for name, told in TOLD.items() for number in range(len(told) + 1)]
#: What is sent is read into the same value; those that others send are in `TOLD` once.
EVENTS = {type(event) for told in TOLD.values() for event in told}


def test_every_event_is_here() -> None:
    ours = {
        kind
        for name, kind in Event.known.items()
        if name.startswith("bench_prep.") and not name.startswith("bench_prep.child.")
    }
    assert ours - {of_sweep.OfPoint} == EVENTS


@pytest.fixture
def speaking(tmp_path: Path) -> Callable[[list[Event], str], dict[str, str]]:
    """What a child that sends these events and ends so finds in its environment."""

    def told(events: list[Event], end: str) -> dict[str, str]:
        lines = [
            json.dumps(
                {"event": f"{type(one).__module__}:{type(one).__qualname__}"} | vars(one),
                default=vars,
            )
            for one in events
        ]
        file = tmp_path / "speaks.json"
        file.write_text(json.dumps({"lines": lines, "end": end}))
        return {SPEAKS: str(file)}

    return told


@pytest.mark.parametrize("name", TOLD)
def test_a_child_that_is_done_is_heard_as_it_spoke(
    name: str, tmp_path: Path, speaking: Any
) -> None:
    environment = speaking(TOLD[name], "done")
    with launch.launched("tests.child.speaks", {}, environment, tmp_path / "log") as child:
        assert [*child.events()] == TOLD[name]


@pytest.mark.parametrize(
    ("name", "number", "end"),
    [
        *((name, number, "killed") for name, number in CUTS),
        *((name, len(told), end) for name, told in TOLD.items() for end in ("exits", "ends")),
    ],
)
def test_a_child_that_ends_at_any_event_is_an_error(
    name: str, number: int, end: str, tmp_path: Path, speaking: Any
) -> None:
    environment = speaking(TOLD[name][:number], end)
    how = {"killed": "SIGKILL", "exits": "exit code 3", "ends": "exit code 0"}[end]
    heard: list[Event] = []
    with (
        pytest.raises(BenchPrepError, match=f"ended early, with {how}; .*\n    the last word"),
        launch.launched("tests.child.speaks", {}, environment, tmp_path / "log") as child,
    ):
        heard.extend(child.events())
    assert heard == TOLD[name][:number]


def _time(log: Path) -> None:
    verified: Any = type("Verified", (), {"package_dir": Path(), "python_hashes": {}})
    stages = Stages(Console(file=io.StringIO()))
    progress.time_candidate(RunSettings(), verified, log, progress.Progress(), stages)


def _prove(log: Path) -> None:
    job = {"device": "cpu", "steps": 1}
    prove_source._run(job, Stages(Console(file=io.StringIO())))


def _engine(log: Path) -> None:
    engine_run.run_engine(Path(), "cpu", log, fastpath=False)


#: Of each parent: the module in which it launches, and the call.
PARENTS: dict[str, tuple[Any, Callable[[Path], None]]] = {
    "run": (progress, _time),
    "twins": (prove_source, _prove),
    "model": (engine_launch, _engine),
}


@pytest.mark.parametrize(("name", "number"), [cut for cut in CUTS if cut[0] in PARENTS])
def test_no_command_takes_it_for_done(
    name: str, number: int, tmp_path: Path, speaking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = speaking(TOLD[name][:number], "killed")
    module, call = PARENTS[name]

    @contextmanager
    def spoken(_: str, job: Any, given: dict[str, str], log: Path, **more: Any) -> Iterator[Child]:
        with launch.launched("tests.child.speaks", {}, given | environment, log, **more) as child:
            yield child

    monkeypatch.setattr(module, "launched", spoken)
    monkeypatch.setenv("BENCH_PREP_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BenchPrepError, match="ended early, with SIGKILL"):
        call(tmp_path / "log")

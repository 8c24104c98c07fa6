"""`bench-prep sweep`: how both preparations grow with each setting, in one process."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from bench_prep import __version__
from bench_prep.candidate.findable import require_findable
from bench_prep.candidate.served_source import require_served
from bench_prep.child.channel import Event
from bench_prep.child.device import child_environment, require_device
from bench_prep.child.launch import launched
from bench_prep.decode.events import Imported, State
from bench_prep.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    UsageError,
)
from bench_prep.files import as_user_error, check_replaceable, not_interrupted, replace
from bench_prep.measure.records import Clock, Round
from bench_prep.provenance.cachedir import new_log
from bench_prep.provenance.environments import cache_in_use
from bench_prep.provenance.timed_vllm import Source, verified_vllm
from bench_prep.settings import RunSettings
from bench_prep.stages import Stages, Update
from bench_prep.sweep.axes import AXES, LEAST_POINTS, MOST_POINTS, Point, points_of
from bench_prep.sweep.events import Ended, EqualAt, Lap, LeftOut, Proved
from bench_prep.sweep.figure import can_draw, require_matplotlib, svg
from bench_prep.sweep.store import TABLE, load, rows
from bench_prep.sweep.view import is_inconclusive, view


@dataclass(frozen=True)
class Sweep:
    """What is swept.

    Attributes:
        reference: the settings around which it is, candidate and seed among them.
        axes: names of `axes.AXES`.
        points: of each axis, at most.
        margin: a difference up to this fraction counts as flat.
        budget_s: seconds after which it ends, from the first runner on.
    """

    reference: RunSettings
    axes: tuple[str, ...] = tuple(AXES)
    points: int = 4
    margin: float = 0.1
    budget_s: float = 150.0

    def check(self) -> None:
        """Raises `UsageError` for what cannot be swept."""
        if not LEAST_POINTS <= self.points <= MOST_POINTS:
            raise UsageError(
                f"--points {self.points}: an axis has {LEAST_POINTS} to {MOST_POINTS} points",
                "give a number between them",
            )
        if not 0 < self.margin < 1:
            raise UsageError("--margin must be between 0 and 100 per cent", "for example 10")
        if not 0 < self.budget_s < float("inf"):
            raise UsageError("--budget must be a number of seconds above zero", "for example 150")


@dataclass
class _Told:
    """What the timing process has sent so far."""

    points: dict[tuple[str, int], Point]
    environment: dict[str, Any] = field(default_factory=dict)
    left_out: dict[Point, str] = field(default_factory=dict)
    rounds: dict[Point, list[Round]] = field(default_factory=dict)
    of_point: dict[Point, dict[str, Any]] = field(default_factory=dict)
    clock_cost: dict[Clock, int] = field(default_factory=dict)
    stopped_by: str = ""

    @property
    def laps(self) -> int:
        """Of the point that has the most."""
        return max(map(len, self.rounds.values()), default=0)


def sweep(work: Sweep, source: Source, output: Path, figure: Path | None, console: Console,
          command: str) -> int:  # fmt: skip
    """Sweep, show, add the rows to `output` and draw the figure; 0, or 4 where it is inconclusive.

    Without a `figure` one is drawn beside the output if matplotlib is there.

    Raises:
        BenchPrepError: whatever stops it; then nothing is written.
    """
    work.check()
    TABLE.check_writable(output)
    if figure is not None:
        require_matplotlib()
    elif can_draw():
        figure = output.with_suffix(".svg")
    if figure is not None:
        check_replaceable(figure)
        if figure.resolve() == output.resolve():
            raise UsageError(f"{output} would be the figure, too", "give --figure another name")
    require_device(work.reference.device)
    require_findable(work.reference.candidate)
    require_served(source.worktree, work.reference)
    with cache_in_use():
        return _swept(work, source, output, figure, console, command)


def _swept(work: Sweep, source: Source, output: Path, figure: Path | None, console: Console,
           command: str) -> int:  # fmt: skip
    stages = Stages(console)
    run_id = uuid.uuid4().hex[:12]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    verified, provenance = verified_vllm(source, work.reference.device, stages)
    points = points_of(work.axes, work.points, work.reference)
    told = _Told({(point.axis, point.value): point for point in points})
    log = new_log(f"sweep-{run_id}.log")
    interrupted = False
    try:
        with stages.running("launch") as update:
            job = {
                "reference": work.reference.for_another_folder().model_dump(mode="json"),
                "axes": list(work.axes),
                "points": work.points,
                "margin": work.margin,
                "budget_s": work.budget_s,
                "package_dir": str(verified.package_dir),
                "hashes": verified.python_hashes,
            }
            environment = child_environment(work.reference.device)
            watch = _watcher(told, stages, update)
            with launched("bench_prep.sweep.process", job, environment, log) as child:
                for event in child.events():
                    watch(event)
    except KeyboardInterrupt:
        if told.laps < 2:
            raise
        interrupted = True
    with not_interrupted():
        told.stopped_by = "interrupted" if interrupted else told.stopped_by
        frame = rows(
            told.rounds,
            told.left_out,
            work.margin,
            {
                "run": run_id,
                "started": started,
                "budget_s": work.budget_s,
                "points": work.points,
                "stopped_by": told.stopped_by,
                "bench_prep_version": __version__,
                "command": command,
            }
            | provenance
            | told.environment,
            told.of_point,
            told.clock_cost,
        )
        _passed(told, stages)
        try:
            _store(output, frame, figure, stages)
        finally:
            console.print(view(frame))
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_INCONCLUSIVE if is_inconclusive(frame) else 0


def show(path: Path, run: str | None, figure: Path | None, console: Console) -> int:
    """The tables of a sweep that a file has, and its figure where one is asked for.

    Raises:
        UsageError: `store.load` says why, or the figure cannot be written.
        Missing: no matplotlib.
    """
    if figure is not None:
        require_matplotlib()
        check_replaceable(figure)
    frame = load(path, run)
    if figure is not None:
        _write(figure, frame)
    console.print(view(frame))
    if figure is not None:
        Stages(console).passed("figure", str(figure))
    return EXIT_INCONCLUSIVE if is_inconclusive(frame) else 0


def _store(output: Path, frame: pd.DataFrame, figure: Path | None, stages: Stages) -> None:
    content = b"" if figure is None else svg(frame)
    TABLE.keep(output, frame.to_dict("records"), str(frame["run"].iloc[0]), figure, content)
    about = "no figure, because matplotlib is not installed"
    stages.passed("result", f"{output}; {f'its figure is {figure}' if figure else about}")


def _write(path: Path, frame: pd.DataFrame) -> None:
    with as_user_error(path, "choose another --figure"):
        replace(path.resolve(), svg(frame))


def _watcher(told: _Told, stages: Stages, update: Update) -> Callable[[Event], None]:
    """What is done with each event of the timing process."""

    def on_event(event: Event) -> None:
        match event:
            case Imported(package_dir):
                stages.launched(package_dir)
                update("bringing the runner into decode", "state")
            case State(environment):
                told.environment |= environment
                where = f"vLLM {environment['vllm_version']} on {environment['device_name']}"
                stages.passed("state", where)
                update("making a pair of runners for each point", "state")
            case LeftOut(axis, value, reason):
                point = told.points[axis, value]
                told.left_out[point] = reason
                stages.passed("", f"left out: {point}: {reason}")
            case EqualAt(axis, value, steps, boundaries):
                point = told.points[axis, value]
                told.rounds[point] = []
                told.of_point[point] = {
                    "equality_steps": steps,
                    "boundaries_crossed": boundaries,
                }
                update(f"{point}: identical", "equal")
            case Proved(seed, clock_cost, seconds):
                told.environment["seed"] = seed
                told.clock_cost = clock_cost
                proved = sum(one["equality_steps"] for one in told.of_point.values())
                stages.passed(
                    "equal",
                    f"whole state identical at {len(told.of_point)} points, after each of "
                    f"{proved} steps; ready after {seconds:.0f} s",
                )
                update("the first lap", "time")
            case Lap(axis, value, timed):
                point = told.points[axis, value]
                told.rounds[point].append(timed)
                told.of_point[point] |= {
                    "drawn_steps": event.drawn_steps,
                    "dispatched_pct": event.dispatched_pct,
                }
                update(f"lap {told.laps}, {point}", "time")
            case Ended(by):
                told.stopped_by = by or ""

    return on_event


def _passed(told: _Told, stages: Stages) -> None:
    drawn = sum(one.get("drawn_steps", 0) for one in told.of_point.values())
    checked = sum(one.steps for rounds in told.rounds.values() for one in rounds)
    why = {
        "width": "all differences were known to a quarter of the margin",
        "budget": "the time budget was spent",
        "interrupted": "interrupted",
    }[told.stopped_by]
    stages.passed(
        "time",
        f"{told.laps} laps over {len(told.rounds)} points; {why}; {checked} timed steps and "
        f"{drawn} drawn whole states identical",
    )

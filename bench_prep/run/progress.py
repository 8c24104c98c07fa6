"""Stages `launch`, `state`, `equal` and `time`: the timing processes at work, as it happens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_prep.child.channel import Event
from bench_prep.child.device import child_environment
from bench_prep.child.launch import launched
from bench_prep.decode.events import Imported, State
from bench_prep.measure.records import Clock, Round
from bench_prep.measure.state import Span
from bench_prep.measure.stopping import StoppedBy
from bench_prep.measure.verdict import (
    ROUNDS_FOR_VERDICT,
    decisive,
    effect_of,
    round_log_ratio,
)
from bench_prep.provenance.verify import Verification
from bench_prep.report.sections import STOPPED
from bench_prep.run.against import compare_worktrees
from bench_prep.run.events import (
    ClockCost,
    Equal,
    Floor,
    OnlyInCandidate,
    Stopped,
    Timed,
)
from bench_prep.settings import Method, RunSettings
from bench_prep.stages import Stages, Update

_NAMES_SHOWN = 6


@dataclass
class Progress:
    """What the timing process has sent so far.

    `finished_s`: seconds since the timing began, of each finished round.
    """

    environment: dict[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    clock_cost: dict[Clock, int] = field(default_factory=dict)
    floor: dict[Clock, int] = field(default_factory=dict)
    log_ratios: list[float] = field(default_factory=list)
    slices: int | None = None
    checked_steps: int = 0
    stopped_by: StoppedBy | None = None
    finished_s: list[float] = field(default_factory=list)


def time_candidate(
    settings: RunSettings,
    verified: Verification,
    log: Path,
    progress: Progress,
    stages: Stages,
) -> None:
    """Stages `launch`, `state`, `equal` and `time`, all in one timing process."""
    with stages.running("launch") as update:
        job = {
            "settings": settings.for_another_folder().model_dump(mode="json"),
            "package_dir": str(verified.package_dir),
            "hashes": verified.python_hashes,
        }
        environment = child_environment(settings.device)
        watch = _watcher(settings, progress, stages, update)
        with launched("bench_prep.run.process", job, environment, log) as child:
            for event in child.events():
                watch(event)
    _timed(progress, stages)


def _timed(progress: Progress, stages: Stages) -> None:
    rounds = progress.rounds
    steps = len(next(iter(rounds[0].blocks[0].samples.values())))
    drawn = progress.environment["drawn_steps"]
    stages.passed(
        "time",
        f"{_count(len(rounds), 'round')} of {_count(steps, 'step')} per block "
        f"in {_count(progress.slices or 1, 'slice')}; "
        f"{STOPPED[progress.stopped_by or 'interrupted']}; "
        f"{progress.checked_steps} timed steps, {drawn} drawn whole states and all end states "
        "identical",
    )


def _watcher(
    settings: RunSettings, progress: Progress, stages: Stages, update: Update
) -> Callable[[Event], None]:
    """What is done with each event of the timing."""

    began = 0.0

    def on_event(event: Event) -> None:
        nonlocal began
        match event:
            case Imported(package_dir):
                stages.launched(package_dir)
                update("bringing the runner into decode", "state")
            case State(environment):
                progress.environment |= environment
                stages.passed("state", _state_line(settings, environment))
                update("proving the candidate equal", "equal")
            case OnlyInCandidate(paths):
                names = ", ".join(paths[:_NAMES_SHOWN])
                more = ", ..." if paths[_NAMES_SHOWN:] else ""
                stages.passed("", f"only the candidate has, so not compared: {names}{more}")
            case Equal(steps, boundaries, seed):
                progress.environment["equality_steps"] = steps
                progress.environment["boundaries_crossed"] = boundaries
                progress.environment["seed"] = seed
                stages.passed(
                    "equal",
                    f"whole state identical after each of {steps} steps, "
                    f"{boundaries} block boundaries among them",
                )
                began = time.monotonic()
                update("the first round", "time")
            case Timed(round=timed):
                progress.rounds.append(timed)
                if not timed.left_out:
                    progress.log_ratios.append(round_log_ratio(timed, decisive(timed)))
                if event.span is not None:
                    progress.spans.append(event.span)
                progress.finished_s.append(time.monotonic() - began)
                if len(progress.rounds) == 2:
                    _say_what_is_short(settings.method, progress.finished_s, stages)
                progress.slices = event.slices
                progress.environment["dispatched_pct"] = event.dispatched_pct
                progress.environment["drawn_steps"] = event.drawn_steps
                progress.checked_steps = event.checked_steps
                update(_so_far(progress), "time")
            case ClockCost(ns):
                progress.clock_cost = ns
            case Floor(ns):
                progress.floor = ns
            case Stopped(by):
                progress.stopped_by = by
                if len(progress.rounds) == 1:  # and there is no second one
                    _say_what_is_short(settings.method, progress.finished_s, stages)

    return on_event


def time_worktrees(
    settings: RunSettings,
    baseline: Verification,
    candidate: Verification,
    log: Path,
    progress: Progress,
    stages: Stages,
) -> None:
    """The same stages for two worktrees, in processes of their own."""
    with stages.running("launch") as update:
        compare_worktrees(
            settings,
            baseline,
            candidate,
            (
                log.with_stem(f"{log.stem}-baseline"),
                log.with_stem(f"{log.stem}-candidate"),
                log.with_stem(f"{log.stem}-baseline-again"),
            ),
            _watcher(settings, progress, stages, update),
        )
    _timed(progress, stages)


def _say_what_is_short(method: Method, finished_s: list[float], stages: Stages) -> None:
    """What cannot end in a verdict is said as soon as that can be known, with what would do.

    `finished_s` are the seconds of the first round, or of the first two, since the timing began.
    """
    if method.rounds is not None and method.rounds < ROUNDS_FOR_VERDICT:
        stages.passed(
            "",
            f"--rounds {method.rounds} gives no verdict, which needs {ROUNDS_FOR_VERDICT} rounds",
        )
        return
    short = f"--budget {method.limit_s:g} is too short for a verdict"
    if len(finished_s) == 1:
        stages.passed(
            "",
            f"{short}, which needs {ROUNDS_FOR_VERDICT} rounds: the first one ended after "
            f"{finished_s[0]:.1f} s; leave --budget out",
        )
        return
    first, second = finished_s
    expected = second + (ROUNDS_FOR_VERDICT - 2) * (second - first)
    if expected > method.limit_s:
        # A larger budget makes longer blocks, until 30 of their rounds fill it.
        stages.passed(
            "",
            f"{short}: the {ROUNDS_FOR_VERDICT} rounds that it needs take about {expected:.1f} s; "
            f"give --budget {math.ceil(1.5 * expected)}",
        )


def _so_far(progress: Progress) -> str:
    if not progress.log_ratios:
        return f"{_count(len(progress.rounds), 'round')}, none of which counts"
    effect = effect_of(progress.log_ratios)
    between = ""
    if effect.low is not None and effect.high is not None:
        between = f" ({100 * effect.low:+.2f} to {100 * effect.high:+.2f} %)"
    return f"{_count(effect.rounds, 'round')}, change {100 * effect.value:+.2f} %{between}"


def _state_line(settings: RunSettings, environment: dict[str, Any]) -> str:
    extras = [
        name
        for name, on in (("M-RoPE", settings.mrope), ("prompt embeddings", settings.prompt_embeds))
        if on
    ]
    return (
        f"vLLM {environment['vllm_version']} on {environment['device_name']}, decode at position "
        f"{settings.position}, block sizes {settings.block_sizes_text}"
        + "".join(f", {name}" for name in extras)
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

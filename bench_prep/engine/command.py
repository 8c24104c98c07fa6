"""`bench-prep engine`: the preparation timed inside a running engine, A/B/A, in one process."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.child.channel import Event
from bench_prep.child.launch import temporary_folder
from bench_prep.engine.events import Compared, Loaded, Rounds, Stopped
from bench_prep.engine.vllm.arguments import engine_arguments
from bench_prep.engine.vllm.launch import (
    begin,
    engine_environment,
    launched_engine,
    unpinned,
)
from bench_prep.engine.vllm.shapes import write_model
from bench_prep.errors import EXIT_INCONCLUSIVE
from bench_prep.measure.records import Round
from bench_prep.measure.state import Span
from bench_prep.measure.stopping import StoppedBy
from bench_prep.provenance.hashes import file_sha256
from bench_prep.report.sections import STOPPED, verdict_line
from bench_prep.report.tables import result_view
from bench_prep.results.rows import Measured
from bench_prep.results.rows import rows as make_rows
from bench_prep.results.store import TABLE, store
from bench_prep.settings import AS_PLUGIN, Method, RunSettings

WARMUP = 8


def time_engine(
    model: str,
    device: str,
    *,
    prompt_tokens: int,
    max_model_len: int,
    method: Method,
    output: Path,
    command: str,
    console: Console,
) -> int:
    """Time one engine and append a row per clock to `output`; the exit code, 0 or 4.

    A block is a stretch of `WARMUP` untimed steps and the method's `iters` timed ones.

    Raises:
        BenchPrepError: whatever stops it; then nothing is written.
    """
    TABLE.check_writable(output)
    begun = begin("engine", device, max_model_len, console)
    stages = begun.stages
    found = _Found()
    method = replace(method, warmup=WARMUP)
    with temporary_folder() as scratch, stages.running("engine") as update:
        update("loading the model")
        folder = write_model(model, scratch)
        config_sha256 = file_sha256(folder / "config.json")
        job = {
            "engine": engine_arguments(folder, device, max_model_len),
            "prompt_tokens": prompt_tokens,
            "method": asdict(method),
        }
        environment = engine_environment(device, fastpath=True)
        with launched_engine("bench_prep.engine.process", job, environment, begun.log) as child:
            for event in child.events():
                update(found.on_event(event))
    settings = RunSettings(
        **found.settings,
        position=prompt_tokens,
        warmup=WARMUP,
        iters=method.iters,
        rounds=method.rounds,
        margin=100 * method.margin,
        budget=method.budget_s,
        candidate=AS_PLUGIN,
    )
    stages.passed(
        "engine",
        f"{model}; after a prompt of {prompt_tokens} tokens {found.checked} steps compared, "
        f"{len(found.rounds)} rounds of stretches of {method.iters} steps; "
        f"{STOPPED[found.stopped_by or 'interrupted']}",
    )
    measured = Measured(
        settings,
        found.rounds,
        begun.provenance
        | unpinned(found.environment)
        | {
            "bench_prep_version": __version__,
            "command": command,
            "equality_steps": found.checked,
            "dispatched_pct": 100.0,
        },
        begun.run_id,
        begun.started,
        stopped_by=found.stopped_by,
        slices=1,
        spans=found.spans,
        model_config_sha256=config_sha256,
    )
    rows = make_rows(measured)
    try:
        steps = store(output, rows, begun.run_id, found.rounds)
    finally:
        console.print(result_view(rows))
    host = next(row for row in rows if row.clock == "host")
    console.print()
    stages.passed("verdict", verdict_line(host))
    stages.passed("result", f"{output}; every step in {steps}")
    return EXIT_INCONCLUSIVE if host.verdict == "inconclusive" else 0


class _Found:
    """What the engine's process sent."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.environment: dict[str, Any] = {}
        self.checked = 0
        self.rounds: list[Round] = []
        self.spans: list[Span] = []
        self.stopped_by: StoppedBy | None = None

    def on_event(self, event: Event) -> str:
        """Keep it; what the engine does next, in words."""
        match event:
            case Loaded(environment, settings):
                self.settings, self.environment = settings, environment
                return "comparing steps"
            case Compared(steps):
                self.checked = steps
            case Rounds(rounds, spans):
                self.rounds += rounds
                self.spans += spans
            case Stopped(by):
                self.stopped_by = by
        return f"{len(self.rounds)} rounds"

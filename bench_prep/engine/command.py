"""`bench-prep engine`: the preparation timed inside a running engine, A/B/A, in one process."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.child.launch import run_isolated, temporary_folder
from bench_prep.engine.vllm.launch import (
    begin,
    engine_arguments,
    engine_environment,
    require_done,
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
    begun = begin("engine", device, console)
    stages = begun.stages
    found = _Found()
    method = replace(method, warmup=WARMUP)
    with temporary_folder() as scratch, stages.running("engine") as update:
        update("loading the model")
        folder = write_model(model, scratch)
        config_sha256 = file_sha256(folder / "config.json")
        run_isolated(
            "bench_prep.engine.process",
            {
                "engine": engine_arguments(folder, device, max_model_len),
                "prompt_tokens": prompt_tokens,
                "method": asdict(method),
            },
            engine_environment(device, fastpath=True),
            lambda event: update(found.on_event(event)),
            begun.log,
        )
    require_done(found.last, begun.log)
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
        self.last: dict[str, Any] = {}

    def on_event(self, event: dict[str, Any]) -> str:
        """Keep it; what the engine does next, in words."""
        self.last = event
        match event["event"]:
            case "loaded":
                self.settings, self.environment = event["settings"], event["environment"]
                return "comparing steps"
            case "equal":
                self.checked = event["steps"]
            case "rounds":
                self.rounds += [Round.from_json(one) for one in event["rounds"]]
                self.spans += [Span.from_json(one) for one in event["spans"]]
            case "stopped":
                self.stopped_by = event["by"]
        return f"{len(self.rounds)} rounds"

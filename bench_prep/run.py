"""The whole claim: build, verify, launch, prove equal, time, write, show.

The first stage that fails ends the run with its exit code.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.errors import (
    BY_EXIT_CODE,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    BenchPrepError,
    UsageError,
)
from bench_prep.measure.records import ARMS, Round
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.provenance.install import InstalledVllm
from bench_prep.provenance.launch import run_isolated
from bench_prep.report.rows import rows
from bench_prep.report.store import append, check_writable, steps_path, write_steps
from bench_prep.report.tables import result_view
from bench_prep.settings import RunSettings
from bench_prep.source import Source, prove_source
from bench_prep.stages import Stages
from bench_prep.target import child_environment, require_device

_LOG_LINES = 12


@dataclass
class _Progress:
    """What the timing process has sent so far."""

    environment: dict[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    error: dict[str, Any] | None = None
    done: bool = False


def run(settings: RunSettings, source: Source, output: Path, console: Console, command: str) -> int:
    """Do the whole main job; the exit code of a run whose outputs were equal (0 or 4) or 130.

    Raises:
        BenchPrepError: whatever stops the run, with its exit code and its remedy.
    """
    check_writable(output)
    require_device(settings.device)
    _require_candidate_file(settings)
    stages = Stages(console)
    run_id = uuid.uuid4().hex[:12]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    installed, provenance = prove_source(source, settings.device, stages)
    provenance |= {
        "bench_prep_version": __version__,
        "fastpath_sha256": _fastpath_sha256(),
        "command": command,
    }
    log = cache_dir() / "logs" / f"run-{run_id}.log"
    progress = _Progress(environment=provenance)
    interrupted = False
    try:
        _time(settings, installed, log, progress, stages)
    except KeyboardInterrupt:
        if not progress.rounds:
            raise
        interrupted = True
    with _not_interrupted():
        frame = rows(
            settings,
            progress.rounds,
            equal=True,
            partial=interrupted,
            environment=progress.environment,
            run_id=run_id,
            started=started,
        )
        # Shown first: what was measured must not be lost with a disk that fills at the end.
        console.print(result_view(frame))
        steps = _store(output, frame, run_id, progress.rounds)
    stages.passed("result", f"{output}; every step in {steps.name}")
    if interrupted:
        return EXIT_INTERRUPTED
    decisive = frame[frame["clock"] == "ready"].iloc[0]
    return EXIT_INCONCLUSIVE if decisive["verdict"] == "inconclusive" else 0


def _require_candidate_file(settings: RunSettings) -> None:
    file = settings.candidate_file
    if file is not None and not file.is_file():
        raise UsageError(
            f"--candidate {settings.candidate}: there is no file {file}",
            "give file.py:attribute, or module:attribute of an installed module",
        )


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """A second, impatient Ctrl-C must not cost what was measured."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _store(output: Path, frame: Any, run_id: str, finished: list[Round]) -> Path:
    """Write the steps and then the rows, or neither; where the steps are."""
    steps = steps_path(output, run_id)
    write_steps(steps, finished)
    try:
        append(output, frame)
    except BaseException:
        steps.unlink(missing_ok=True)
        raise
    return steps


def _time(
    settings: RunSettings,
    installed: InstalledVllm,
    log: Path,
    progress: _Progress,
    stages: Stages,
) -> None:
    """Stages `launch`, `state`, `equal` and `time`, all in the timing process."""
    blocks, all_blocks = 0, settings.rounds * len(ARMS)
    with stages.running("launch") as update:

        def on_event(event: dict[str, Any]) -> None:
            nonlocal blocks
            match event["event"]:
                case "imported":
                    stages.passed(
                        "launch",
                        "fresh interpreter in an empty folder under /tmp; "
                        f"imports {event['package_dir']}",
                    )
                    update("bringing the runner into decode", "state")
                case "state":
                    progress.environment |= event["environment"]
                    stages.passed("state", _state_line(settings, event["environment"]))
                    update("proving the candidate equal", "equal")
                case "equal":
                    progress.environment["equality_steps"] = event["steps"]
                    progress.environment["boundaries_crossed"] = event["boundaries"]
                    stages.passed(
                        "equal",
                        f"whole state identical after each of {event['steps']} steps, "
                        f"{event['boundaries']} block boundaries among them",
                    )
                    update(f"0 of {all_blocks} blocks", "time")
                case "block":
                    blocks += 1
                    update(f"{blocks} of {all_blocks} blocks, last {event['arm']}", "time")
                case "round":
                    progress.rounds.append(Round.from_json(event["round"]))
                    progress.environment["dispatched_pct"] = event["dispatched_pct"]
                case "error":
                    progress.error = event
                case "done":
                    progress.done = True

        returned = run_isolated(
            "bench_prep.worker",
            {
                "settings": settings.for_another_folder().model_dump(mode="json"),
                "package_dir": str(installed.package_dir),
            },
            child_environment(settings.device),
            on_event,
            log,
        )
    if progress.error is not None:
        raise _as_raised(progress.error)
    if not progress.done:
        raise BenchPrepError(
            f"the timing process ended early, with {_ending(returned)}; its last lines:\n"
            + "\n".join(_tail(log)),
            f"the whole output is in {log}",
        )
    stages.passed(
        "time",
        f"{len(progress.rounds)} rounds of {settings.iters} steps per block after "
        f"{settings.warmup} for warm-up; end states identical",
    )


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


def _as_raised(event: dict[str, Any]) -> BenchPrepError:
    kind = BY_EXIT_CODE.get(int(event["exit_code"]), BenchPrepError)
    error = kind(event["message"], event["remedy"])
    if "traceback" in event:
        error.add_note(event["traceback"])
    return error


def _ending(returned: int) -> str:
    return signal.Signals(-returned).name if returned < 0 else f"exit code {returned}"


def _tail(log: Path) -> list[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [f"    {line[:200]}" for line in lines[-_LOG_LINES:]]


def _fastpath_sha256() -> str:
    folder = Path(__file__).with_name("fastpath")
    files = [path for path in folder.iterdir() if path.suffix in (".py", ".json")]
    return combined_sha256({path.name: file_sha256(path) for path in files})

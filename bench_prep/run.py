"""The whole claim: build, verify, launch, prove equal, time, write, show.

Each stage prints one line as it passes; the first that fails ends the run with its exit code.
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
from rich.markup import escape
from rich.table import Table

from bench_prep import __version__
from bench_prep.errors import (
    BY_EXIT_CODE,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    BenchPrepError,
    Missing,
    NotTheWorktree,
    UsageError,
)
from bench_prep.measure.records import ARMS, Round
from bench_prep.provenance.build import BuiltWheel, build_wheel
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.corrections import corrected_files
from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.provenance.install import InstalledVllm, install_wheel, installed_vllm
from bench_prep.provenance.launch import run_isolated
from bench_prep.provenance.verify import Verification, fingerprint, require_ok, verify
from bench_prep.provenance.worktree import Worktree, open_worktree
from bench_prep.report.rows import rows
from bench_prep.report.store import append, check_writable, steps_path, write_steps
from bench_prep.report.tables import result_view
from bench_prep.settings import RunSettings
from bench_prep.target import child_environment, require_device, target_device

_LOG_LINES = 12


@dataclass(frozen=True)
class Source:
    """Where the timed vLLM comes from.

    `worktree` None: the installed vLLM as it is, compared with nothing. `build` False: compare
    the installed vLLM with the worktree without building. `precompiled`: a wheel whose compiled
    parts are used.
    """

    worktree: Path | None = None
    precompiled: Path | None = None
    build: bool = True


@dataclass
class _Progress:
    """What the timing process has sent so far."""

    environment: dict[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    error: dict[str, Any] | None = None
    done: bool = False


class Stages:
    """One line per stage, and a moving line while a stage runs."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def passed(self, name: str, text: str) -> None:
        self.console.print(
            f"[green]{name:<8}[/green] {escape(text)}", highlight=False, soft_wrap=True
        )

    @contextmanager
    def running(self, name: str) -> Iterator[Any]:
        """Yields a function that changes the moving line; nothing moves without a terminal."""
        with self.console.status(name) as status:
            yield lambda text: status.update(f"{name}: {escape(text)}")


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


def prove_source(
    source: Source, device: str, stages: Stages
) -> tuple[InstalledVllm, dict[str, Any]]:
    """Stages `wheel` and `sources`: the installed vLLM, and the provenance columns.

    Raises:
        NotTheWorktree: after a table of the differing files.
        Missing: no vLLM, or the build failed.
    """
    worktree = None if source.worktree is None else open_worktree(source.worktree)
    built = None
    if worktree is not None and source.build:
        built = build_and_install(worktree, source.precompiled, device, stages)
    installed = installed_vllm()
    if installed is None:
        raise Missing(
            "vLLM is not installed in this environment",
            "run scripts/run_bench.sh, or give --worktree to build and install one",
        )
    if worktree is None:
        stages.passed("wheel", f"none built: vLLM {installed.version} is timed as installed")
    elif built is None:
        stages.passed("wheel", f"none built (--no-build): vLLM {installed.version} as installed")
    verification = check_sources(worktree, installed, stages)
    return installed, {
        "compared": worktree is not None,
        "vllm_commit": worktree.commit if worktree else None,
        "worktree_dirty": worktree.dirty if worktree else None,
        "tree_sha256": built.tree_hash if built else worktree.tree_hash() if worktree else None,
        "wheel_sha256": built.sha256 if built else installed.wheel_sha256,
        "key_sources_sha256": verification.key_sources_sha256,
    }


def build_and_install(
    worktree: Worktree, precompiled: Path | None, device: str, stages: Stages
) -> BuiltWheel:
    """Stage `wheel`: the worktree's wheel, built or reused, and installed."""
    with stages.running("wheel") as update:
        built = build_wheel(worktree, precompiled, target_device(device), update)
        fresh = install_wheel(built, update)
    made = "unchanged, not rebuilt" if built.cached else f"built in {built.seconds:.0f} s"
    placed = "installed" if fresh else "already installed"
    stages.passed("wheel", f"{built.path.name}: {made}, {placed}; SHA-256 {built.sha256[:12]}")
    corrected = [
        name for name in corrected_files(worktree.version) if (worktree.root / name).is_file()
    ]
    if corrected and worktree.root.is_relative_to(cache_dir()):
        stages.passed("", f"the official release with one correction, in {corrected[0]}")
    return built


def build_only(
    worktree: Worktree, precompiled: Path | None, device: str, install: bool, stages: Stages
) -> None:
    """`bench-prep build`: the wheel in the cache, and installed if asked for."""
    if install:
        build_and_install(worktree, precompiled, device, stages)
        return
    with stages.running("wheel") as update:
        built = build_wheel(worktree, precompiled, target_device(device), update)
    made = "unchanged, not rebuilt" if built.cached else f"built in {built.seconds:.0f} s"
    stages.passed("wheel", f"{built.path}: {made}; SHA-256 {built.sha256[:12]}")


def check_sources(
    worktree: Worktree | None, installed: InstalledVllm, stages: Stages
) -> Verification:
    """Stage `sources`: is the installed package the worktree?

    Raises:
        NotTheWorktree: after a table of the differing files.
    """
    verification = fingerprint(installed) if worktree is None else verify(worktree, installed)
    try:
        require_ok(verification)
    except NotTheWorktree:
        stages.console.print(differences_table(verification))
        raise
    subject = "not compared:" if worktree is None else "identical to the worktree:"
    stages.passed(
        "sources",
        f"{subject} {len(verification.key_sources)} key sources of {len(verification.files)} "
        f"files; SHA-256 {verification.key_sources_sha256[:12]}",
    )
    return verification


def differences_table(verification: Verification) -> Table:
    """The files that are not the worktree's, with the beginnings of their hashes."""
    table = Table(title="not the worktree", title_justify="left")
    for column in ("file", "problem", "worktree", "installed", "RECORD"):
        table.add_column(column, overflow="fold")

    def short(digest: str | None) -> str:
        return digest[:12] if digest else "-"

    for file in verification.wrong:
        table.add_row(
            file.path,
            file.problem,
            short(file.worktree_sha256),
            short(file.installed_sha256),
            short(file.record_sha256),
        )
    return table


def _time(
    settings: RunSettings,
    installed: InstalledVllm,
    log: Path,
    progress: _Progress,
    stages: Stages,
) -> None:
    """Stages `launch`, `state`, `equal` and `time`, all in the timing process."""
    blocks = 0
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
                    update("bringing the runner into decode")
                case "state":
                    progress.environment |= event["environment"]
                    stages.passed("state", _state_line(settings, event["environment"]))
                    update("proving the candidate equal")
                case "equal":
                    progress.environment["equality_steps"] = event["steps"]
                    progress.environment["boundaries_crossed"] = event["boundaries"]
                    stages.passed(
                        "equal",
                        f"whole state identical after each of {event['steps']} steps, "
                        f"{event['boundaries']} block boundaries among them",
                    )
                case "block":
                    blocks += 1
                    update(f"timed {event['arm']}, block {blocks} of {settings.rounds * len(ARMS)}")
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
            f"the timing process ended with {returned} before it was done; its last lines:\n"
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

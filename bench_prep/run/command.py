"""The whole claim: build, verify, launch, prove equal, time, write, show.

The first stage that fails ends the run with its exit code.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from bench_prep import __version__
from bench_prep.candidate.findable import require_findable
from bench_prep.candidate.served_source import require_served
from bench_prep.child.device import require_device
from bench_prep.child.memory import require_runners_memory
from bench_prep.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    UsageError,
)
from bench_prep.files import not_interrupted
from bench_prep.provenance.cachedir import new_log
from bench_prep.provenance.environments import cache_in_use
from bench_prep.provenance.timed_vllm import Source, verified_vllm, verified_worktrees
from bench_prep.report.sections import verdict_line
from bench_prep.report.tables import result_view
from bench_prep.results.rows import Measured, rows
from bench_prep.results.store import TABLE, store
from bench_prep.run.progress import Progress, time_candidate, time_worktrees
from bench_prep.settings import OF_WORKTREE, OUR_CANDIDATE, RunSettings
from bench_prep.stages import Stages


@cache_in_use()
def run(settings: RunSettings, source: Source, output: Path, console: Console, command: str) -> int:
    """Do the whole main job; the exit code of a run whose outputs were equal (0 or 4) or 130.

    Raises:
        BenchPrepError: whatever stops the run, with its exit code and its remedy.
    """
    TABLE.check_writable(output)
    require_device(settings.device)
    require_runners_memory(settings)
    stages = Stages(console)
    run_id = uuid.uuid4().hex[:12]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    if source.against is None:
        require_findable(settings.candidate)
        require_served(source.worktree, settings)
        verified, provenance = verified_vllm(source, settings.device, stages)
        time = partial(time_candidate, settings, verified)
    else:
        if settings.candidate != OUR_CANDIDATE:
            raise UsageError(
                "--candidate and --against exclude each other",
                "with --against the candidate is the worktree's own preparation",
            )
        settings = settings.model_copy(update={"candidate": OF_WORKTREE})
        baseline, candidate, provenance = verified_worktrees(source, settings.device, stages)
        time = partial(time_worktrees, settings, baseline, candidate)
    provenance |= {
        "bench_prep_version": __version__,
        "command": command,
    }
    log = new_log(f"run-{run_id}.log")
    progress = Progress(environment=provenance)
    interrupted = False
    try:
        time(log, progress, stages)
    except KeyboardInterrupt:
        if not progress.rounds:
            raise
        interrupted = True
    with not_interrupted():
        measured = Measured(
            settings,
            progress.rounds,
            progress.environment | {"checked_steps": progress.checked_steps},
            run_id,
            started,
            partial=interrupted,
            stopped_by="interrupted" if interrupted else progress.stopped_by,
            slices=progress.slices,
            spans=progress.spans,
            clock_cost=progress.clock_cost,
            floor=progress.floor,
        )
        found = rows(measured)
        # Neither a disk that fills at the end nor a reader that goes away may cost the other one.
        try:
            steps = store(output, found, run_id, progress.rounds)
        finally:
            console.print(result_view(found))
    decisive = next(row for row in found if row.clock == "ready")
    console.print()
    stages.passed("verdict", verdict_line(decisive))
    stages.passed("result", f"{output}; every step in {steps}")
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_INCONCLUSIVE if decisive.verdict == "inconclusive" else 0

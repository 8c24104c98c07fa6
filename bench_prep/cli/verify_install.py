"""`bench-prep verify-install`: parse, call; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.options import WorktreeOption, console
from bench_prep.errors import UsageError


def verify_install(
    worktree: WorktreeOption = None,
    result: Annotated[
        Path | None, typer.Option(help="Result CSV: is it still the vLLM of a run in it?")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", help="Run in --result. Default: the last one.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Content of compiled parts too, not only their size.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; docs/provenance.md names its keys.")
    ] = False,
) -> None:
    """Is the installed vLLM this worktree? Exit code 5, with files and reasons, if it is not."""
    from bench_prep.provenance.verify_install import verify_install as check

    if run_id is not None and result is None:
        raise UsageError("--run names a run of a result file", "give --result FILE too")
    check(worktree, result, run_id, whole=whole, as_json=as_json, console=console)

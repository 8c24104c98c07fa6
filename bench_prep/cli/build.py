"""`bench-prep build`: parse, call; no logic."""

from __future__ import annotations

from typing import Annotated

import typer

from bench_prep.cli.options import (
    DeviceOption,
    PrecompiledOption,
    WorktreeOption,
    console,
)
from bench_prep.errors import UsageError


def build(
    worktree: WorktreeOption = None,
    precompiled: PrecompiledOption = None,
    device: DeviceOption = None,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install the wheel too.")
    ] = False,
) -> None:
    """The wheel alone: built from the worktree, or reused when nothing changed."""
    from bench_prep.provenance.timed_vllm import build_only
    from bench_prep.provenance.worktree import open_worktree
    from bench_prep.stages import Stages

    if worktree is None:
        raise UsageError("build needs a worktree", "give --worktree DIR")
    build_only(open_worktree(worktree), precompiled, device or "auto", install, Stages(console))

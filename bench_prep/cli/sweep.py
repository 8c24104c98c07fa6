"""`bench-prep sweep`: parse, call, exit code; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bench_prep.cli.command_line import command_line
from bench_prep.cli.options import (
    CandidateOption,
    DeviceOption,
    NoBuildOption,
    PrecompiledOption,
    WorktreeOption,
    console,
)
from bench_prep.errors import UsageError


def sweep(
    context: typer.Context,
    axes: Annotated[
        str | None,
        typer.Option(
            help="Axes, with commas: position, max_num_reqs, max_num_tokens, groups, block_size. "
            "Default: all."
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Points of each axis, both ends among them.")] = 4,
    mrope: Annotated[
        bool, typer.Option("--mrope/--no-mrope", help="Three position rows (M-RoPE).")
    ] = False,
    candidate: CandidateOption = None,
    worktree: WorktreeOption = None,
    precompiled: PrecompiledOption = None,
    no_build: NoBuildOption = False,
    margin: Annotated[
        float, typer.Option(help="Differences between points up to this many per cent are flat.")
    ] = 10.0,
    budget: Annotated[
        float, typer.Option(help="Most seconds of the sweep, once the first runner is there.")
    ] = 150.0,
    device: DeviceOption = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of all that is drawn. Default: a new one, in the CSV."),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="CSV file that a row per point, arm and clock is added to.")
    ] = Path("bench-prep-sweep.csv"),
    figure: Annotated[
        Path | None,
        typer.Option(
            help="SVG file of the figure. Default: beside the CSV, where matplotlib is installed."
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from", help="Only the tables of such a CSV file; with --figure that, too."),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Run in --from. Default: the last one.")
    ] = None,
) -> None:
    """How host, ready and device time grow with each setting, one axis at a time.

    Both preparations, at position 24576 with two KV groups of 16 tokens but for the axis's own
    setting; all in one process, in interleaved laps.
    """
    from bench_prep.settings import resolve
    from bench_prep.sweep.axes import names_of
    from bench_prep.sweep.command import Sweep, show
    from bench_prep.sweep.command import sweep as sweep_all

    if from_file is not None:
        raise typer.Exit(show(from_file, run, figure, console))
    if run is not None:
        raise UsageError("--run names a run of a result file", "give --from FILE too")
    flags: dict[str, Any] = {
        "mrope": mrope, "candidate": candidate, "device": device, "seed": seed
    }  # fmt: skip
    work = Sweep(
        reference=resolve(None, flags),
        axes=names_of(axes),
        points=points,
        margin=margin / 100,
        budget_s=budget,
    )
    from bench_prep.provenance.timed_vllm import Source

    source = Source(worktree, precompiled, build=not no_build)
    command = command_line(context, worktree=worktree, precompiled=precompiled)
    raise typer.Exit(sweep_all(work, source, output, figure, console, command))

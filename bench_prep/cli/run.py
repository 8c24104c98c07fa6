"""`bench-prep run`: parse, call, exit code; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bench_prep.cli.command_line import command_line
from bench_prep.cli.options import (
    BudgetOption,
    CandidateOption,
    DeviceOption,
    MarginOption,
    NoBuildOption,
    OutputOption,
    PrecompiledOption,
    WorktreeOption,
    console,
)


def run(
    context: typer.Context,
    worktree: WorktreeOption = None,
    precompiled: PrecompiledOption = None,
    no_build: NoBuildOption = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Worktree of the baseline, to time the other worktree's preparation against."
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(help="Tokens already computed for the request. Default: 24576."),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest request, in tokens. Default: 32768.")
    ] = None,
    max_num_reqs: Annotated[
        int | None, typer.Option(help="Largest batch, in requests. Default: 128.")
    ] = None,
    max_num_tokens: Annotated[
        int | None, typer.Option(help="Most tokens in one step. Default: 4096.")
    ] = None,
    block_sizes: Annotated[
        str | None,
        typer.Option(help="Block size of each KV group, in tokens, with commas. Default: 16,16."),
    ] = None,
    mrope: Annotated[
        bool | None, typer.Option("--mrope/--no-mrope", help="Three position rows (M-RoPE).")
    ] = None,
    prompt_embeds: Annotated[
        bool | None,
        typer.Option("--prompt-embeds/--no-prompt-embeds", help="The prompt is embeddings."),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Untimed steps before each block. Default: 100.")
    ] = None,
    iters: Annotated[
        int | None, typer.Option(help="Timed steps of each block, at most. Default: 2000.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Fixed number of baseline / candidate / baseline rounds, which only --budget "
            "ends early; a verdict needs 10."
        ),
    ] = None,
    margin: MarginOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset in configs/, or a TOML file; flags override it.")
    ] = None,
    candidate: CandidateOption = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the requests and of the steps that are checked while they are timed. "
            "Default: a new one."
        ),
    ] = None,
    tpot_ms: Annotated[
        float | None,
        typer.Option(help="The service's time per output token, in ms, to show the share of it."),
    ] = None,
    output: OutputOption = Path("bench-prep-results.csv"),
) -> None:
    """The whole claim: build, verify, launch, prove equal, time, write, show.

    Without --worktree the installed vLLM is timed as it is.
    """
    from bench_prep.settings import resolve

    names = (
        "position", "max_model_len", "max_num_reqs", "max_num_tokens", "block_sizes", "mrope",
        "prompt_embeds", "warmup", "iters", "rounds", "margin", "budget", "device", "candidate",
        "seed", "tpot_ms",
    )  # fmt: skip
    given = locals()
    flags: dict[str, Any] = {name: given[name] for name in names}
    settings = resolve(preset, flags)

    from bench_prep.provenance.timed_vllm import Source
    from bench_prep.run.command import run as run_all

    source = Source(worktree, precompiled, build=not no_build, against=against)
    command = command_line(context, worktree=worktree, precompiled=precompiled)
    raise typer.Exit(run_all(settings, source, output, console, command))

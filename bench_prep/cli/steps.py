"""`bench-prep steps`: parse, call, exit code; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.command_line import command_line
from bench_prep.cli.options import DeviceOption, ModelArgument, WeightsOption, console


def steps(
    model: ModelArgument,
    weights: WeightsOption = False,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt's length, in tokens.")] = 4000,
    max_model_len: Annotated[int, typer.Option(min=3, help="Longest request, in tokens.")] = 32768,
    eager: Annotated[
        bool, typer.Option("--eager", help="Without compilation and CUDA graphs.")
    ] = False,
    stretch: Annotated[int, typer.Option(min=1, help="Recorded steps of each stretch.")] = 16,
    rounds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Rounds of stretches by vLLM's own preparation, the fast path, vLLM's own: 10 at "
            "least for a verdict, and 200 steps (--rounds times --stretch) at least.",
        ),
    ] = 30,
    device: DeviceOption = None,
    output: Annotated[
        Path,
        typer.Option(help="CSV file that a row per part is added to; a trace is put beside it."),
    ] = Path("bench-prep-steps.csv"),
) -> None:
    """Where a decode step's time goes: the host's parts, the device, and who waits for whom.

    One real engine decodes one request, with the fast path and without it.
    """
    from bench_prep.steps.command import Workload, show_steps

    work = Workload(
        model=model,
        prompt_tokens=prompt_tokens,
        max_model_len=max_model_len,
        own_weights=weights,
        eager=eager,
        stretch=stretch,
        rounds=rounds,
    )
    raise typer.Exit(
        show_steps(work, device or "auto", output=output, command=command_line(), console=console)
    )

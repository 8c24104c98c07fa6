"""`bench-prep engine`: parse, call, exit code; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.command_line import command_line
from bench_prep.cli.options import (
    BudgetOption,
    ConfigArgument,
    DeviceOption,
    MarginOption,
    OutputOption,
    console,
)
from bench_prep.errors import UsageError


def engine(
    model: ConfigArgument,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt's length, in tokens.")] = 4000,
    max_model_len: Annotated[int, typer.Option(min=3, help="Longest request, in tokens.")] = 32768,
    stretch: Annotated[int, typer.Option(min=1, help="Timed steps of each stretch.")] = 64,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Fixed number of rounds of three stretches, which only --budget ends early."
        ),
    ] = None,
    margin: MarginOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = None,
    output: OutputOption = Path("bench-prep-results.csv"),
) -> None:
    """The preparation inside a running engine: vLLM's own, the fast path, vLLM's own.

    One real engine with random weights decodes one request; stretches of its steps alternate.
    """
    from bench_prep.engine.command import time_engine
    from bench_prep.settings import resolve

    chosen = resolve(None, {"iters": stretch, "rounds": rounds, "margin": margin, "budget": budget})
    if prompt_tokens > max_model_len - 2:
        raise UsageError(
            f"--prompt-tokens {prompt_tokens} leaves no room in --max-model-len {max_model_len}",
            "give a shorter prompt or a longer model length",
        )
    raise typer.Exit(
        time_engine(
            model,
            device or "auto",
            prompt_tokens=prompt_tokens,
            max_model_len=max_model_len,
            method=chosen.method,
            output=output,
            command=command_line(),
            console=console,
        )
    )

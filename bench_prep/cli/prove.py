"""`bench-prep prove`: parse, call, print; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.command_line import command_line
from bench_prep.cli.options import Commands, ConfigArgument, DeviceOption, console

prove = typer.Typer(
    cls=Commands,
    help="What the fast path may serve: each proof can add what it proves to the known ones.",
    no_args_is_help=True,
)


@prove.command("model")
def prove_model(
    model: ConfigArgument,
    add: Annotated[
        bool, typer.Option("--add", help="List the architecture as proven, for the fast path.")
    ] = False,
    device: DeviceOption = None,
    output: Annotated[
        Path | None, typer.Option(help="JSON list of proofs that this one is put into.")
    ] = None,
) -> None:
    """Same tokens and log-probabilities with and without the fast path, on whole engines?

    Random weights under which outputs vary; a planted wrong KV slot must change them.
    """
    from bench_prep.prove.model.command import run_prove_model

    run_prove_model(
        model, device or "auto", add=add, output=output, command=command_line(), console=console
    )


@prove.command("source")
def prove_source(
    steps: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="Least number of twin steps.")
    ] = 5000,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed that repeats the same traces. Default: a new one, shown."),
    ] = None,
    device: DeviceOption = None,
    add: Annotated[
        bool, typer.Option("--add", help="Prove an unknown source too, and add it to the known.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file for the proof.")] = None,
) -> None:
    """Is the fast path exact on the installed vLLM's source, whatever requests come and go?

    Random traces of requests; two real runners' whole states are compared in every step.
    """
    import secrets

    from bench_prep.prove.source.command import run_prove_source

    run_prove_source(
        steps,
        secrets.randbelow(2**31) if seed is None else seed,
        device or "auto",
        add=add,
        output=output,
        command=command_line(),
        console=console,
    )

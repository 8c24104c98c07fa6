"""`bench-prep report`: parse, call; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.options import console


def report(
    files: Annotated[list[Path], typer.Argument(help="Result CSV files, any number of runs.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown tables.")] = False,
    tpot_ms: Annotated[
        float | None,
        typer.Option(help="Time per output token, in ms, for rows that were written without."),
    ] = None,
) -> None:
    """Any number of runs in one view, labelled by what differs between them."""
    from bench_prep.report.overview import run_report

    run_report(files, markdown, console, tpot_ms)

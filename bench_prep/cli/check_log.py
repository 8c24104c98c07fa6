"""`bench-prep check-log`: parse, call; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.options import console


def check_log(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Log of one vLLM service: its files in any order, .gz too; - is stdin."
        ),
    ],
    min_share: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Least share of the decode steps, in per cent."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; docs/service.md names its keys.")
    ] = False,
) -> None:
    """Is the fast path used in a service? Its log tells; docs/service.md names the exit codes."""
    from bench_prep.plugin_log.check_log import check_log as check

    check(files, min_share=min_share, as_json=as_json, console=console)

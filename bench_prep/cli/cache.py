"""`bench-prep cache`: parse, call; no logic."""

from __future__ import annotations

from typing import Annotated

import typer

from bench_prep.cli.options import console
from bench_prep.errors import UsageError


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove it, after a question.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    edited: Annotated[
        list[str] | None,
        typer.Option(help="Official worktree to remove although you have edited it; repeatable."),
    ] = None,
) -> None:
    """Where downloads, wheels, logs and environments are kept, and the size of each."""
    from bench_prep.provenance import cache as cached

    if (yes or edited) and not clear:
        raise UsageError(
            f"{'--yes' if yes else '--edited'} is for --clear alone", "give --clear too"
        )
    if clear:
        cached.clear(console, yes, edited or ())
    else:
        cached.show(console)

"""What the commands of the command line share: options, the console, what a Ctrl-C becomes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import typer.core

from bench_prep.cli.screen import Screen
from bench_prep.cli.streams import drop_width
from bench_prep.errors import Interrupted

drop_width(os.environ)
# Paths and messages are shown as they are: `:x:` is no emoji.
console = Screen(emoji=False)


class Commands(typer.core.TyperGroup):
    """Typer would make a Ctrl-C a silent exit."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was written") from None


WorktreeOption = Annotated[
    Path | None,
    typer.Option(
        envvar="BENCH_PREP_WORKTREE",
        help="vLLM checkout or unpacked source distribution.",
    ),
]
PrecompiledOption = Annotated[
    Path | None,
    typer.Option(
        envvar="BENCH_PREP_PRECOMPILED",
        help="vLLM wheel whose compiled parts are used; without it everything is compiled.",
    ),
]
NoBuildOption = Annotated[
    bool, typer.Option("--no-build", help="Compare with the worktree without building.")
]
CandidateOption = Annotated[
    str | None,
    typer.Option(
        help="Preparation under test: module:attribute or file.py:attribute. "
        "Default: the fast path."
    ),
]
DeviceOption = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(help="Device of the runner; cuda is also ROCm/DTK. Default: auto."),
]
MarginOption = Annotated[
    float | None,
    typer.Option(help="Differences up to this many per cent of the baseline are none. Default: 1."),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        help="Most seconds of timing; it ends earlier once the change is known to half the "
        "margin. Default: 60, or no limit with --rounds."
    ),
]
OutputOption = Annotated[
    Path, typer.Option(help="CSV file that the result is appended to, one row per clock.")
]
ConfigArgument = Annotated[
    str,
    typer.Argument(
        help="Model folder or config.json, of which the weights are not used, or an "
        "architecture, such as LlamaForCausalLM, for a tiny model of it.",
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Model folder or config.json, or an architecture, such as LlamaForCausalLM, for a "
        "tiny model of it.",
    ),
]
WeightsOption = Annotated[
    bool, typer.Option("--weights", help="Those in the model's folder. Default: random ones.")
]

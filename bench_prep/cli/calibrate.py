"""`bench-prep calibrate`: parse, call, exit code; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.command_line import command_line
from bench_prep.cli.options import DeviceOption, console


def calibrate(
    runs: Annotated[int, typer.Option(min=1, help="Verdicts on each thing planted.")] = 20,
    budget: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Most seconds of timing for a verdict.")
    ] = 6.0,
    margin: Annotated[
        float, typer.Option(min=0.01, max=50, help="Differences up to this many per cent are none.")
    ] = 1.0,
    effects: Annotated[
        str, typer.Option(help="Planted slow-downs in per cent, with commas; 0: equal arms.")
    ] = "0,0.5,1,2,5",
    conditions: Annotated[
        str, typer.Option(help="What is planted besides, with commas: none, drift, steps, load.")
    ] = "none,drift,steps,load",
    device: DeviceOption = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of all that is drawn. Default: a new one, in the CSV."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            help="CSV file, one row a verdict; what it has of the same seed is not repeated."
        ),
    ] = Path("bench-prep-calibration.csv"),
    show: Annotated[
        list[Path] | None,
        typer.Option(help="Only the table of such a CSV file; repeatable, for one table of all."),
    ] = None,
) -> None:
    """Is the harness right on this machine? Itself against itself, and planted slow-downs."""
    import secrets

    from bench_prep.calibrate import command as calibrating

    if show:
        calibrating.show(show, console)
        return
    from bench_prep.settings import Method

    planted = calibrating.cells(conditions, effects)
    calibration = calibrating.Calibration(
        cells=planted,
        runs=runs,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        works=calibrating.works_of(device or "auto"),
        method=Method(margin=margin / 100, budget_s=budget),
    )
    raise typer.Exit(calibrating.calibrate(calibration, output, console, command_line()))

"""The CSV of `run` and `engine`, and every timed step beside it."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench_prep.measure.records import CLOCKS, Round
from bench_prep.results.row import COLUMNS, NAMES, VERSION, Row
from bench_prep.results.table import Table

TABLE = Table("bench-prep run and engine", COLUMNS, VERSION)


def records(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Their columns by name."""
    return [{name: getattr(row, name) for name in NAMES} for row in rows]


def steps_path(path: Path, run_id: str) -> Path:
    """Where the steps of one run go: beside the result CSV `path`, with the run in the name."""
    return path.with_name(f"{path.stem}.{run_id}.steps.csv.gz")


def steps_content(rounds: Sequence[Round]) -> bytes:
    """Every timed step, as gzip CSV: `round,arm,step,host_ns,ready_ns,device_ns,preempted`.

    Rounds and steps count from 0; times are in nanoseconds, empty where the platform has no such
    clock. `preempted` is how often the kernel took the processor away from the step, which then
    is in no median of host and ready time. Inside an engine there is `step_ns` instead, and
    `left_out` where rounds do not count: why this one does not.
    """
    blocks = [block for one in rounds for block in one.blocks]
    clocks = [
        clock
        for clock in CLOCKS
        if clock != "step" or any(clock in block.samples for block in blocks)
    ]
    counted = any("preempted" in block.samples for block in blocks)
    marked = any(one.left_out for one in rounds)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["round", "arm", "step", *(f"{clock}_ns" for clock in clocks)]
        + ["preempted"] * counted
        + ["left_out"] * marked
    )
    for number, one in enumerate(rounds):
        for block in one.blocks:
            empty = [""] * len(next(iter(block.samples.values()), ()))
            names: list[Any] = [*clocks, "preempted"] if counted else [*clocks]
            samples = [block.samples.get(name, empty) for name in names]
            for step, values in enumerate(zip(*samples, strict=True)):
                writer.writerow([number, block.arm, step, *values, *[one.left_out] * marked])
    return gzip.compress(file.getvalue().encode(), mtime=0)


def store(path: Path, rows: Iterable[Row], run_id: str, rounds: Sequence[Round]) -> Path:
    """Write a run's steps and then its rows, or neither; where the steps are.

    Raises as `Table.keep` does.
    """
    steps = steps_path(path, run_id)
    TABLE.keep(path, records(rows), run_id, steps, steps_content(rounds))
    return steps

"""The whole calibration: verdict by verdict, each written at once, and a table of them."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from bench_prep.calibrate.conditions import CONDITIONS
from bench_prep.calibrate.store import load, together
from bench_prep.calibrate.tally import PROMISED_FALSE, Share, Tally, tally
from bench_prep.calibrate.trial import TABLE, Cell, Trial, device_name, environment, try_once
from bench_prep.child.device import is_cpu, require_device
from bench_prep.errors import EXIT_INTERRUPTED, Inconclusive, UsageError
from bench_prep.settings import Method
from bench_prep.stages import Stages

#: Two threads of torch on busy processors wait for each other.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Calibration:
    """What is tried.

    Attributes:
        cells: what is planted; each is tried once before any is tried again.
        runs: verdicts of each cell.
        seed: of everything that is drawn.
        works: `host`, `device` or both.
        method: budget and margin.
    """

    cells: tuple[Cell, ...]
    runs: int
    seed: int
    works: tuple[str, ...]
    method: Method

    @property
    def count(self) -> int:
        return self.runs * len(self.cells) * len(self.works)

    def trials(self) -> Iterator[tuple[int, str, Cell]]:
        """All cells in turn, so that whatever happens to the machine happens to all of them."""
        for run in range(self.runs):
            for cell in self.cells:
                for work in self.works:
                    yield run, work, cell


def cells(conditions: str, effects: str) -> tuple[Cell, ...]:
    """All pairs of names of `CONDITIONS` and slow-downs in per cent, both with commas.

    Raises:
        UsageError: another name, or not a number from 0 to 100.
    """
    names = dict.fromkeys(word.strip() for word in conditions.split(","))
    for name in names:
        if name not in CONDITIONS:
            raise UsageError(
                f"--conditions: no condition '{name}'", f"--conditions {','.join(CONDITIONS)}"
            )
    try:
        planted = tuple(dict.fromkeys(float(word) for word in effects.split(",")))
    except ValueError:
        planted = (-1.0,)
    if not all(0 <= effect <= 100 for effect in planted):
        raise UsageError(
            f"--effects {effects}: not numbers from 0 to 100 with commas", "--effects 0,0.5,1,2,5"
        )
    return tuple(Cell(CONDITIONS[name], effect) for name in names for effect in planted)


def works_of(device: str) -> tuple[str, ...]:
    """The work of `--device`: the host's, and with a device its own too.

    Raises:
        Missing: `--device cuda` without such a device.
    """
    require_device(device)
    return ("host",) if is_cpu(device) else ("host", "device")


def calibrate(
    calibration: Calibration,
    output: Path,
    console: Console,
    command: str,
    attempt: Callable[..., list[Trial]] = try_once,
) -> int:
    """Try everything that `output` does not have yet; 0, or 130 when interrupted.

    Raises:
        UsageError: `output` is something else or cannot be written.
        Inconclusive: this machine's verdicts break the promise, or there are none.
    """
    os.environ.update(_ENVIRONMENT)  # before torch is imported
    TABLE.check_writable(output)
    done = _done(_own(load(output), calibration))
    stages = Stages(console)
    interrupted = False
    try:
        with stages.running("tries") as update:
            for number, (run, work, cell) in enumerate(calibration.trials(), 1):
                if (work, cell.condition.name, cell.effect_pct, run) in done:
                    continue
                update(
                    f"{number} of {calibration.count}: {cell.effect_pct:g} % planted, "
                    f"{cell.condition.text} ({work})"
                )
                rows = attempt(
                    cell,
                    run,
                    seed=calibration.seed,
                    work=work,
                    method=calibration.method,
                    command=command,
                )
                TABLE.keep(output, map(asdict, rows), uuid.uuid4().hex[:12])
    except KeyboardInterrupt:
        interrupted = True
    tallies = tally(_own(load(output), calibration))
    for table in tables(tallies, calibration.method):
        console.print(table)
    stages.passed("result", f"{output}, one row a verdict")
    if interrupted:
        return EXIT_INTERRUPTED
    _check(tallies)
    return 0


def show(files: Sequence[Path], console: Console) -> None:
    """The table of everything that is in these files.

    Raises:
        UsageError: a file that is not there or is something else, a row that is there twice or
            contradicts itself, or several methods in them.
    """
    frame = together(files)
    methods = frame[["margin_pct", "budget_s"]].drop_duplicates()
    if len(methods) != 1:
        raise UsageError(
            f"{len(methods)} margins and budgets in {', '.join(map(str, files))}",
            "show those of one margin and budget together",
        )
    margin, budget = (float(value) for value in methods.iloc[0])
    for table in tables(tally(frame), Method(margin=margin / 100, budget_s=budget)):
        console.print(table)


def _own(frame: pd.DataFrame, calibration: Calibration) -> pd.DataFrame:
    """Those rows that this calibration has or would make."""
    method = calibration.method
    mine = (
        (frame["seed"] == calibration.seed)
        & (frame["budget_s"] == method.limit_s)
        & (frame["margin_pct"] == round(100 * method.margin, 6))
    )
    for name, here in environment().items():
        mine &= frame[name] == here
    devices = {work: device_name(work) for work in calibration.works}
    return frame[mine & (frame["device_name"] == frame["work"].map(devices))]


def _done(frame: pd.DataFrame) -> set[tuple[str, str, float, int]]:
    names = ["work", "condition", "effect_pct", "run"]
    return {tuple(row) for row in frame[names].itertuples(index=False)}


def _check(tallies: Sequence[Tally]) -> None:
    for one in tallies:
        if one.false.interval[0] > PROMISED_FALSE:
            raise Inconclusive(
                f"{one.false.hits} of {one.false.trials} verdicts are false ({one.condition}, "
                f"{one.effect_pct:g} % planted): more than {PROMISED_FALSE:.0%} beyond chance",
                "trust no verdict of this machine; pin it, quieten it, or give a larger --budget",
            )
    if all(one.inconclusive.hits == one.inconclusive.trials for one in tallies):
        raise Inconclusive("no verdict at all", "give a larger --budget, or a quieter machine")


def tables(tallies: Sequence[Tally], method: Method) -> Iterator[Table]:
    """One for each clock; below every count is its share's exact interval of 95 %."""
    for name in dict.fromkeys(_clock(one) for one in tallies):
        made = Table(
            title=f"{name}; margin {100 * method.margin:g} %, at most {method.limit_s:g} s",
            caption="false: a difference where there is none, or the opposite of the planted one; "
            "missed: twice the margin or more, not found; open: inconclusive; change: median "
            "estimate, in per cent; held: the interval has the planted change; s: median seconds. "
            "Below a count is the exact 95 % interval of its share, in per cent.",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        made.add_column("planted", no_wrap=True)
        for column in ("runs", "false", "missed", "open", "same", "slower", "change", "held"):
            made.add_column(column, justify="right")
        made.add_column("s", justify="right")
        for one in tallies:
            if _clock(one) == name:
                made.add_row(*_cells(one))
        yield made


def _clock(one: Tally) -> str:
    return "work on the host" if one.work == "host" else f"work on the device, {one.clock} time"


def _cells(one: Tally) -> Iterator[str]:
    yield f"{one.effect_pct:g} %" + ("" if one.condition == "none" else f", {one.condition}")
    yield str(one.false.trials)
    for share in (one.false, one.missed, one.inconclusive):
        yield "" if share is None else _cell(share, one.false.trials)
    yield str(one.verdicts.get("same", 0))
    yield str(one.verdicts.get("slower", 0))
    yield "" if math.isnan(one.change_pct) else f"{one.change_pct:+.2f}"
    yield _cell(one.held, one.false.trials)
    yield f"{one.seconds:.1f}"


def _cell(share: Share, runs: int) -> str:
    low, high = (f"{100 * end:.1f}" if end < 0.1 else f"{100 * end:.0f}" for end in share.interval)
    count = str(share.hits) if share.trials == runs else f"{share.hits} of {share.trials}"
    return f"{count}\n{low}-{high}"

"""One verdict on work whose truth is known, from a fresh state."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from bench_prep import __version__
from bench_prep.calibrate.conditions import CONDITIONS, Condition
from bench_prep.calibrate.workload import DeviceWork, HostWork, Planted, Speed, Work
from bench_prep.measure.comparison import Result, settle
from bench_prep.measure.machine import cpu_model
from bench_prep.measure.state import Span, others_busy, read_state
from bench_prep.measure.watch import Watch
from bench_prep.results.schema import columns_of, number, text
from bench_prep.results.table import Table
from bench_prep.settings import Method

#: A work of its own for every verdict: its memory lies elsewhere each time.
WORKS: dict[str, Callable[[np.random.Generator], Work]] = {"host": HostWork, "device": DeviceWork}


@dataclass(frozen=True)
class Cell:
    """What is planted; `effect_pct` is the candidate's slow-down in per cent."""

    condition: Condition
    effect_pct: float


@dataclass(frozen=True)
class Trial:
    """One verdict on one clock, which is one row of the CSV; times in the units of the names.

    `decisive` is 1 on the clock that ended the timing. The ends of the interval are None where
    there is none, and the change is not a number where no round counts. `others_busy` are the
    processors that other processes kept busy meanwhile, the planted load among them.
    """

    schema: int = number("identity", "", "version of these columns")
    condition: str = text("setting", "", "what is planted besides the slow-down")
    effect_pct: float = number("setting", "%", "the planted slow-down")
    run: int = number("identity", "", "of the same condition and slow-down")
    seed: int = number("environment", "", "of everything that is drawn")
    work: str = text("setting", "", "host or device")
    clock: str = text("setting", "", "ready, device or step")
    decisive: int = number("setting", "", "1 on the clock that ended the timing, else 0")
    verdict: str = text("result", "", "faster, slower, same or inconclusive")
    change_pct: float = number("result", "%", "the measured change")
    low_pct: float | None = number("result", "%", "lower end of its 99.8 % interval")
    high_pct: float | None = number("result", "%", "upper end of its 99.8 % interval")
    margin_pct: float = number("setting", "%", "a difference up to this is none")
    budget_s: float = number("setting", "s", "the timing's time")
    seconds: float = number("result", "s", "the time that it took")
    stopped_by: str = text("result", "", "width, budget or rounds")
    rounds: int = number("result", "rounds", "finished rounds")
    left_out: int = number("result", "rounds", "those of them that do not count")
    iters: int = number("result", "steps", "timed steps of each block")
    slices: int = number("result", "slices", "interleaved parts of each block")
    baseline_ms: float = number("result", "ms", "of a call, without the slow-down")
    others_busy: float | None = number("result", "processors", "kept busy by other processes")
    started: str = text("identity", "UTC, ISO 8601", "when it started")
    cpu_model: str = text("environment", "", "the host's processor")
    device_name: str = text("environment", "", "the device of the work")
    python_version: str = text("environment", "", "the interpreter")
    numpy_version: str = text("environment", "", "NumPy")
    bench_prep_version: str = text("environment", "", "this program")
    command: str = text("environment", "", "the command that made the row")


#: Version 2 has the names that rows of the other commands have.
TABLE = Table(
    "bench-prep calibrate",
    columns_of(Trial),
    2,
    {
        "machine": "cpu_model",
        "device": "device_name",
        "python": "python_version",
        "numpy": "numpy_version",
        "bench_prep": "bench_prep_version",
    },
)


def generator(seed: int, cell: Cell, run: int) -> np.random.Generator:
    """The same for the same trial, another one for each other."""
    condition = list(CONDITIONS).index(cell.condition.name)
    return np.random.default_rng([seed, condition, round(1e6 * cell.effect_pct), run])


def environment() -> dict[str, str]:
    """What must be alike for verdicts to be counted together, besides the device; by column."""
    return {
        "cpu_model": cpu_model(),
        "python_version": platform.python_version(),
        "bench_prep_version": __version__,
    }


def device_name(work: str) -> str:
    """The device of the work of this name; empty without one."""
    return WORKS[work](np.random.default_rng(0)).device_name


def settle_planted(rng: np.random.Generator, work: Work, cell: Cell, method: Method) -> Result:
    """The verdict on a candidate that is `work`, slowed down as the cell says."""
    watch = Watch(work.read)
    with cell.condition.load(rng):
        speed = Speed(cell.condition.law(rng, method.limit_s))
        return settle(
            Planted(work, speed, 0.0),
            Planted(work, speed, cell.effect_pct / 100),
            method,
            device=work.device,
            watch=watch,
        )


def try_once(
    cell: Cell, run: int, *, seed: int, work: str, method: Method, command: str
) -> list[Trial]:
    """One verdict; a row for each clock, the decisive one first."""
    rng = generator(seed, cell, run)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    made = WORKS[work](rng)
    before = read_state()
    result = settle_planted(rng, made, cell, method)
    others = others_busy([Span(before, read_state())])
    left_out = sum(bool(one.left_out) for one in result.rounds)
    shown = [clock for clock in result.clocks if clock != "host"]  # ready, or equal to it
    rows = []
    for clock in sorted(shown, key=lambda clock: clock != result.decisive):
        judged = result.clocks[clock]
        rows.append(
            Trial(
                schema=TABLE.version,
                condition=cell.condition.name,
                effect_pct=cell.effect_pct,
                run=run,
                seed=seed,
                work=work,
                clock=clock,
                decisive=int(clock == result.decisive),
                verdict=judged.verdict,
                change_pct=_pct(judged.effect.value),
                low_pct=None if judged.effect.low is None else _pct(judged.effect.low),
                high_pct=None if judged.effect.high is None else _pct(judged.effect.high),
                margin_pct=round(100 * method.margin, 6),
                budget_s=method.limit_s,
                seconds=round(result.seconds, 3),
                stopped_by=result.stopped_by,
                rounds=len(result.rounds),
                left_out=left_out,
                iters=result.pace.iters,
                slices=len(result.pace.slices),
                baseline_ms=math.nan
                if judged.figures is None
                else round(judged.figures.baseline_ms.median, 6),
                others_busy=None if others is None else round(others, 2),
                started=started,
                device_name=made.device_name,
                numpy_version=np.__version__,
                **environment(),
                command=command,
            )
        )
    return rows


def _pct(fraction: float) -> float:
    return round(100 * fraction, 4)

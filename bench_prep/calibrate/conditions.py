"""What is planted besides the slow-down: it meets both arms alike, and no verdict may follow it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from bench_prep.calibrate.load import periodic_load
from bench_prep.measure.plan import ROUNDS_IN_BUDGET
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT

Law = Callable[[float], float]

#: Of the work of a call, over the shortest run.
DRIFT = 0.10
#: Levels between which the work of a call jumps: eighths, so that slow-downs stay whole units.
LEVELS = (1.0, 1.125, 1.25)
#: Seconds from one start of the load to the next.
PERIODS_S = (0.3, 2.0)


def shortest_s(budget_s: float) -> float:
    """A run may end so early, as soon as there are enough rounds for a verdict."""
    return budget_s * ROUNDS_FOR_VERDICT / ROUNDS_IN_BUDGET


def _steady(rng: np.random.Generator, budget_s: float) -> Law:
    return lambda seconds: 1.0


def _drift(rng: np.random.Generator, budget_s: float) -> Law:
    """`DRIFT` over the shortest run, and on at this rate until the end."""
    per_second = DRIFT / shortest_s(budget_s)
    return lambda seconds: 1 + per_second * seconds


def _steps(rng: np.random.Generator, budget_s: float) -> Law:
    """A lasting change at a random moment of every `shortest_s`, so at least one in a run."""
    width = shortest_s(budget_s)
    count = ROUNDS_IN_BUDGET // ROUNDS_FOR_VERDICT
    at = [(index + rng.uniform()) * width for index in range(count)]
    levels = [float(rng.choice(LEVELS))]
    for _ in at:
        levels.append(float(rng.choice([level for level in LEVELS if level != levels[-1]])))
    return lambda seconds: levels[int(np.searchsorted(at, seconds))]


def _no_load(rng: np.random.Generator) -> AbstractContextManager[object]:
    return nullcontext()


def _load(rng: np.random.Generator) -> AbstractContextManager[object]:
    return periodic_load(rng.uniform(*PERIODS_S))


@dataclass(frozen=True)
class Condition:
    """What is planted in both arms.

    Attributes:
        name: as `--conditions` has it.
        text: what it is, in a few words.
        law: of the work of a call over the time since the run's start, for a budget in seconds.
        load: what runs beside it.
    """

    name: str
    text: str
    law: Callable[[np.random.Generator, float], Law] = _steady
    load: Callable[[np.random.Generator], AbstractContextManager[object]] = _no_load


CONDITIONS = {
    one.name: one
    for one in (
        Condition("none", "nothing planted"),
        Condition("drift", f"{DRIFT:.0%} more work over the shortest run, on at this rate", _drift),
        Condition("steps", "sudden lasting changes of up to a quarter of the work", _steps),
        Condition(
            "load",
            "a second process, on and off every {} to {} s".format(*PERIODS_S),
            load=_load,
        ),
    )
}

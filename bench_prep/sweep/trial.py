"""All points of a sweep in one process: runners, proof, laps.

All that the proof and the clock run is imported with this module: make the guards behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bench_prep.candidate.arms import Arms
from bench_prep.candidate.draws import repeatable
from bench_prep.candidate.guard import Guard
from bench_prep.candidate.load import attach, load_factory
from bench_prep.child.channel import Event
from bench_prep.child.memory import require_runners_memory
from bench_prep.decode.runner import make_runners
from bench_prep.decode.steps import Workload, use_once
from bench_prep.errors import BenchPrepError, Missing
from bench_prep.measure.clocks import clock_cost
from bench_prep.measure.plan import Take
from bench_prep.measure.records import Arm, Samples
from bench_prep.measure.state import state_reader
from bench_prep.measure.watch import Watch
from bench_prep.settings import RunSettings
from bench_prep.sweep.axes import Point
from bench_prep.sweep.events import Ended, EqualAt, Lap, LeftOut, Proved
from bench_prep.sweep.laps import Budget, Laps

Send = Callable[[Event], None]
#: Steps before and after a block boundary at which the twins' whole states are compared.
_MARGIN = 1
#: Part of the budget's rest that points may take to be made, and again to be proved: the laps
#: have what is left then.
_MADE_READY = 0.6


def guarded(
    points: Sequence[Point],
    reference: RunSettings,
    first: Sequence[Any],
    budget: Budget,
    send: Send,
) -> dict[Point, Guard]:
    """A guarded pair of runners for each point that can exist; of the others `LeftOut` is sent.

    Points that differ in position alone have the same runners. `first` are those of the reference.

    Raises:
        Missing: no point can exist; why is that of the last one.
    """
    latest = (1 - _MADE_READY) * budget.left
    pairs = {Point("", 0, reference).shape: tuple(first)}
    made: list[Point] = []
    why = ""
    for point in _ends_first(points):
        try:
            _require_time(budget.left - latest)
            if point.shape not in pairs:
                require_runners_memory(point.settings)
                pairs[point.shape] = tuple(make_runners(point.settings, 2))
            for runner in pairs[point.shape]:
                hidden, dtype = runner.inputs_embeds_size, runner.dtype
                use_once(runner, Workload.make(point.settings, hidden, dtype))
        except Exception as error:
            why = _why(error)
            send(LeftOut(point.axis, point.value, why))
        else:
            made.append(point)
    if not made:
        raise Missing(f"no point of the sweep can be timed: {why}", "choose other --axes")
    guards: dict[RunSettings, Guard] = {}
    for point in made:
        if point.shape not in guards:
            baseline, other = pairs[point.shape]
            of_process = next(iter(guards.values()), None)
            guards[point.shape] = Guard(baseline, other, of_process)
    return {point: guards[point.shape] for point in points if point in made}


def time_points(
    points: Sequence[Point],
    guards: Mapping[Point, Guard],
    reference: RunSettings,
    margin: float,
    budget: Budget,
    send: Send,
) -> None:
    """Load the candidate, prove it equal at each point, and time all of them in laps.

    `guards` were made before anything of the candidate has run; `margin` is a fraction. What is
    drawn comes from one seed, as in `trial.try_candidate`.

    Raises:
        OutputsDiffer, UsageError: as `try_candidate`, with the point.
        Missing: no point can be timed; why is that of the last one.
    """
    latest = (1 - _MADE_READY) * budget.left
    factory = load_factory(reference.candidate)
    seed = int.from_bytes(os.urandom(4)) if reference.seed is None else reference.seed
    watch = Watch(state_reader(next(iter(guards.values())).runners[0].device))
    prepared: dict[Guard, Any] = {}
    arms: dict[Point, Arms] = {}
    why = ""
    for number, point in enumerate(_ends_first([*guards])):
        guard = guards[point]
        try:
            _require_time(budget.left - latest)
            with _at(point, seed):
                if guard not in prepared:
                    prepared[guard] = attach(reference.candidate, factory, guard.runners[1])
                    guard.require_code(reference.candidate)
                seed_here = int(np.random.default_rng([seed, number]).integers(2**32))
                one = Arms(
                    point.settings,
                    guard,
                    prepared[guard],
                    seed_here,
                    watch.disturbances,
                    few_checks=True,
                )
                with one.at_work():
                    sizes = point.settings.block_sizes
                    walked = boundaries(point.settings.position, one.last_position, sizes)
                    proof = one.prove(walked)
        except (Missing, MemoryError, torch.OutOfMemoryError) as error:
            why = _why(error)
            send(LeftOut(point.axis, point.value, why))
        else:
            arms[point] = one
            send(EqualAt(point.axis, point.value, proof.steps, proof.boundaries))
    if not arms:
        raise Missing(f"no point of the sweep can be timed: {why}", "choose other --axes")
    arms = {point: arms[point] for point in points if point in arms}
    first = next(iter(arms.values()))
    guards[next(iter(arms))].integrity.watch(
        **{
            f"{name}_{number}": value
            for number, one in enumerate(arms.values())
            for name, value in one.watched.items()
        }
    )
    send(Proved(seed, clock_cost(first.device), budget.spent))
    laps = Laps(
        {point: _taking(point, one, seed) for point, one in arms.items()},
        watch.left_out,
        margin=margin,
        budget=budget,
        seed=seed,
    )
    drawn = np.random.default_rng([seed, 2**32])
    chosen, seen = int(drawn.integers(len(arms))), 0
    for number, (point, timed) in enumerate(laps.rounds()):
        one = arms[point]
        with _at(point, seed), one.at_work():
            if number == seen + chosen:  # at about two of a lap's points
                one.require_equal(f"after lap {laps.done + 1}")
                one.require_own_work()
                seen, chosen = number + 1, int(drawn.integers(len(arms)))
            one.require_saved(timed)
        send(Lap(point.axis, point.value, timed, one.compared, one.dispatched_pct))
    for point, one in {guards[point]: (point, one) for point, one in arms.items()}.values():
        with _at(point, seed), one.at_work():
            one.require_own_work()
    send(Ended(laps.stopped_by))


def boundaries(position: int, last: int, block_sizes: tuple[int, ...]) -> list[range]:
    """At which positions the twins are compared: around the position and the block boundary
    that each KV group has there or before, as stretches without gaps."""
    wanted = {position, *(position // size * size for size in block_sizes)} - {0}
    found: list[range] = []
    for point in sorted(wanted):
        start, stop = max(point - _MARGIN, 1), min(point + _MARGIN, last) + 1
        if found and start <= found[-1].stop:
            found[-1] = range(found[-1].start, stop)
        else:
            found.append(range(start, stop))
    return found


def _taking(point: Point, arms: Arms, seed: int) -> Take:
    def take(arm: Arm, warmup: int, iters: int) -> Samples:
        with _at(point, seed), arms.at_work():
            return arms.take(arm, warmup, iters)

    return take


def _ends_first(points: Sequence[Point]) -> Iterator[Point]:
    """The first and the last of each axis, then the others: they are missed least."""
    axes = {point.axis: [p for p in points if p.axis == point.axis] for point in points}
    ends = [point for one in axes.values() for point in dict.fromkeys((one[0], one[-1]))]
    yield from ends
    yield from (point for point in points if point not in ends)


def _require_time(seconds: float) -> None:
    if seconds < 0:
        raise Missing("no time was left for it in --budget", "give a larger --budget")


def _why(error: Exception) -> str:
    """Why a point cannot exist, in one line: vLLM, too, refuses settings."""
    if isinstance(error, BenchPrepError):
        return f"{error.message} ({error.remedy})" if error.remedy else error.message
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


@contextmanager
def _at(point: Point, seed: int) -> Iterator[None]:
    """Say of an error at which point it is, and of a difference how to see it again."""
    try:
        with repeatable(seed):
            yield
    except BenchPrepError as error:
        raise type(error)(f"{point}: {error.message}", error.remedy) from error

"""The A/B/A plan: in every round the baseline, the candidate and the baseline again.

The three blocks of a round are taken in interleaved slices, A B A A B A ..., so that whatever
lasts longer than a slice disturbs all three alike. How many steps a slice has, and how many slices
fit into the budget, is measured once, before the first round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from bench_prep.measure.records import ARMS, CLOCKS, Arm, Block, Round, Samples
from bench_prep.measure.stopping import Ending, StoppedBy
from bench_prep.settings import Method

#: Blocks are cut shorter where so many rounds would not fit into the budget.
ROUNDS_IN_BUDGET = 30
#: Timed seconds of a slice: what disturbs a machine comes and goes within tens of milliseconds.
SLICE_S = 0.010

#: A block of whose steps fewer count makes its round not count: too few are left to stand for all.
LEAST_KEPT = 0.25


class Take(Protocol):
    """Takes a slice: `iters` timed steps of one arm, from its first step, after `warmup` others."""

    def __call__(self, arm: Arm, warmup: int, iters: int) -> Samples:
        """The samples, one entry per timed step."""


@dataclass(frozen=True)
class Pace:
    """A block has `slices[i]` timed steps in its i-th slice, and `warmup` others before each."""

    slices: tuple[int, ...]
    warmup: int

    @property
    def iters(self) -> int:
        """Timed steps of a block."""
        return sum(self.slices)

    @property
    def steps(self) -> int:
        """All steps of a block."""
        return self.iters + self.warmup * len(self.slices)


def find_pace(take: Take, method: Method) -> Pace:
    """Slices of about `SLICE_S` timed seconds of the slower arm, as many as `iters` steps need.

    Where the budget has no room for `ROUNDS_IN_BUDGET` such rounds there are fewer, unless the
    rounds are fixed: then the blocks are those that were asked for.
    """
    _pilot(take, 1, 1)  # the first calls of all
    pilot = 1
    while True:
        timed_s, taken_s = _pilot(take, _warmup(method, pilot), pilot)
        enough = timed_s >= SLICE_S or pilot == method.iters
        if enough and timed_s < 10 * SLICE_S:
            # A slice that was preempted looks longer than it is: the fastest of three counts.
            again = [_pilot(take, _warmup(method, pilot), pilot) for _ in range(2)]
            timed_s, taken_s = map(min, zip((timed_s, taken_s), *again, strict=True))
            enough = timed_s >= SLICE_S or pilot == method.iters
        if enough:
            break
        pilot = min(method.iters, 2 * pilot)
    steps = max(1, min(pilot, round(pilot * SLICE_S / timed_s)))
    slices = method.iters / steps
    if method.rounds is None:
        slices = min(slices, method.limit_s / ROUNDS_IN_BUDGET / (taken_s * steps / pilot))
    iters = max(1, min(method.iters, round(slices * steps)))
    count = min(iters, math.ceil(slices))
    least, more = divmod(iters, count)
    return Pace((least + 1,) * more + (least,) * (count - more), _warmup(method, steps))


def _pilot(take: Take, warmup: int, steps: int) -> tuple[float, float]:
    """A slice of each block: the timed seconds of the slowest one, and all that was taken."""
    timed, start = 0.0, time.monotonic()
    for arm in ARMS:
        block = Block(arm, take(arm, warmup, steps))
        for clock in CLOCKS:
            if clock in block.samples:
                times = block.times(clock) or block.samples[clock]
                timed = max(timed, steps * fmean(times) / 1e9)
    return timed, time.monotonic() - start


def preempted(one: Round) -> str:
    """Why a round of which too few steps count does not count; empty where it does."""
    return "; ".join(
        f"most steps were preempted in {block.arm}"
        for block in one.blocks
        if 1 - block.preempted < LEAST_KEPT
    )


def _warmup(method: Method, slice_steps: int) -> int:
    """Untimed steps of each slice: a block's warm-up, spread over its slices."""
    return math.ceil(method.warmup / math.ceil(method.iters / slice_steps))


def take_round(take: Take, pace: Pace) -> Round:
    """One round: the slices of the three blocks in turn."""
    samples: dict[Arm, Samples] = {arm: {} for arm in ARMS}
    for steps in pace.slices:
        for arm in ARMS:
            for name, values in take(arm, pace.warmup, steps).items():
                samples[arm].setdefault(name, []).extend(values)
    before, candidate, after = (Block(arm, samples[arm]) for arm in ARMS)
    return Round((before, candidate, after))


class Timing:
    """Rounds until one of the method's criteria is met.

    Attributes:
        pace: what a block has; None before the first round.
        stopped_by: the name of the criterion that was met; None while the timing goes on.
    """

    def __init__(self, take: Take, method: Method) -> None:
        self._take = take
        self._method = method
        self.pace: Pace | None = None
        self.stopped_by: StoppedBy | None = None

    @property
    def slices(self) -> int | None:
        """Interleaved parts of each block; None before the first round."""
        return None if self.pace is None else len(self.pace.slices)

    def rounds(self, left_out: Callable[[], str] = str) -> Iterator[Round]:
        """Each round as soon as it is finished; what the consumer does meanwhile is in no time.

        `left_out` is asked after every round why it does not count; empty: it counts. What it
        says of the steps before the first round is nobody's matter.
        """
        began = time.monotonic()
        self.pace = find_pace(self._take, self._method)
        left_out()
        ending = Ending(self._method)
        started = time.monotonic()
        while self.stopped_by is None:
            one = take_round(self._take, self.pace)
            one = replace(one, left_out="; ".join(filter(None, (left_out(), preempted(one)))))
            yield one
            now = time.monotonic()
            self.stopped_by = ending.after([one], now - began, now - started)
            started = now

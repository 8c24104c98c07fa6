"""Two callables compared: the one call that every command and every test of the method uses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from bench_prep.measure.clocks import Device, Steps, time_block
from bench_prep.measure.disturbances import Disturbances
from bench_prep.measure.plan import Pace, Take, Timing
from bench_prep.measure.records import Arm, Clock, Round, Samples
from bench_prep.measure.statistics import (
    Figures,
    block_means_ms,
    block_medians_ms,
    compare,
    over_rounds,
)
from bench_prep.measure.stopping import StoppedBy
from bench_prep.measure.verdict import (
    Effect,
    Verdict,
    clocks_of,
    decisive,
    effect_of,
    log_ratio,
    round_log_ratio,
    starts_differ,
    verdict,
)
from bench_prep.measure.watch import Watch
from bench_prep.settings import Method

#: So much more of a faster candidate's steps may be preempted than of the baseline's.
MORE_PREEMPTED = 0.1


@dataclass(frozen=True)
class Judgement:
    """What is said about the candidate on one clock: the verdict, its effect and the figures.

    Where no round counts the effect is not a number and there are no figures. `withheld` is why
    the verdict is `inconclusive` although the interval says more; empty otherwise.
    """

    verdict: Verdict
    effect: Effect
    figures: Figures | None
    withheld: str = ""


@dataclass(frozen=True)
class Result:
    """What a comparison found.

    Attributes:
        rounds: all of them, those that do not count too.
        clocks: each clock's judgement.
        decisive: the clock that decided when to stop.
        stopped_by: the criterion that ended it.
        pace: the steps of each block.
        seconds: what it took.
    """

    rounds: tuple[Round, ...]
    clocks: dict[Clock, Judgement]
    decisive: Clock
    stopped_by: StoppedBy
    pace: Pace
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """On the decisive clock."""
        return self.clocks[self.decisive].verdict

    @property
    def effect(self) -> Effect:
        """On the decisive clock."""
        return self.clocks[self.decisive].effect


class Calls:
    """A function without arguments as steps, each of which is one call of it."""

    result: Any = None

    def __init__(self, function: Callable[[], Any]) -> None:
        self.call = function

    def restart(self) -> None: ...

    def before(self) -> None: ...

    def after(self) -> None: ...


def judge(
    rounds: Sequence[Round], clock: Clock, margin: float, equal: bool = True, *, apart: bool = False
) -> Judgement:
    """The verdict on one clock, over those rounds that count.

    `apart`: before and after are of two processes (`verdict.starts_differ`).

    Where most rounds were left out there is no interval, and so no verdict: what disturbs most
    rounds may be what an arm itself does. A verdict is withheld where what the medians leave out
    contradicts it.

    Raises:
        ValueError: a time that is not above zero.
    """
    counted = [one for one in rounds if not one.left_out]
    if not counted:
        nothing = Effect(math.nan, None, None, 0)
        return Judgement(verdict(nothing, margin, equal), nothing, None)
    figures = over_rounds([compare(*block_medians_ms(one, clock)) for one in counted])
    effect = effect_of([round_log_ratio(one, clock) for one in counted])
    if 2 * len(counted) < len(rounds):
        effect = replace(effect, low=None, high=None)
    said = verdict(effect, margin, equal)
    withheld = _withheld(said, effect, counted, clock, margin)
    if apart and not withheld and said in ("faster", "slower", "same"):
        times = [block_medians_ms(one, clock) for one in counted]
        differ = starts_differ(times, said, margin)
        if differ is not None:
            withheld = f"two processes of the baseline differ by {100 * differ:.2f} %"
    return Judgement("inconclusive" if withheld else said, effect, figures, withheld)


def _withheld(
    said: Verdict, effect: Effect, rounds: Sequence[Round], clock: Clock, margin: float
) -> str:
    """Why a verdict on medians is none, from what medians leave out; empty where it stands.

    - Preempted steps: shorter steps lose the processor less often, unless somebody sees to it.
    - The longest steps: what is saved in most of them must be saved by their mean, at least half
      of it; and what is the same must not differ in the mean. The means' interval is the medians'
      (`verdict.walsh_interval`); where it is wide it contradicts nothing.
    """
    if said == "faster":
        before, candidate, after = (
            fmean(one.blocks[index].preempted for one in rounds) for index in range(3)
        )
        if candidate > max(before, after) + MORE_PREEMPTED:
            return (
                f"{100 * candidate:.0f} % of the candidate's steps were preempted and so left out, "
                f"{100 * max(before, after):.0f} % of the baseline's"
            )
    if said in ("faster", "same"):
        means = effect_of([log_ratio(*block_means_ms(one, clock)) for one in rounds])
        if means.low is None or means.high is None:
            return ""
        if said == "faster":
            contradicts = means.low > math.sqrt(effect.ratio) - 1  # half of it, as logarithms
        else:
            contradicts = means.low > margin or means.high < -margin
        if contradicts:
            return (
                f"by the mean of the steps, not their median, the change is "
                f"{100 * means.value:+.2f} % ({100 * means.low:+.2f} to {100 * means.high:+.2f} %)"
            )
    return ""


def taking(
    baseline: Steps,
    candidate: Steps,
    device: Device | None = None,
    disturbances: Callable[[Arm], Disturbances | None] = lambda arm: None,
) -> Take:
    """Slices of two arms in this process, timed by `clocks.time_block`.

    `disturbances` gives that to which an arm's disturbances are added, as `Watch` has it.
    """

    def take(arm: Arm, warmup: int, iters: int) -> Samples:
        return time_block(
            candidate if arm == "candidate" else baseline,
            warmup=warmup,
            iters=iters,
            device=device,
            disturbances=disturbances(arm),
        )

    return take


def settle(
    baseline: Steps | Callable[[], Any],
    candidate: Steps | Callable[[], Any],
    method: Method | None = None,
    *,
    device: Device | None = None,
    watch: Watch | None = None,
) -> Result:
    """Is the candidate faster, slower or the same? Times both until that is known.

    Either arm is a function without arguments, or steps with parts that are not timed. Whether
    both do the same is not looked at. `watch` says which rounds were disturbed and do not count;
    by default those in which something was compiled or collected.

    Raises:
        ValueError: a time that is not above zero.
    """
    method, watch = method or Method(), watch or Watch()
    began = time.monotonic()
    take = taking(_steps(baseline), _steps(candidate), device, watch.disturbances)
    timing = Timing(take, method)
    rounds = tuple(timing.rounds(watch.left_out))
    assert timing.pace is not None and timing.stopped_by is not None
    return Result(
        rounds=rounds,
        clocks={clock: judge(rounds, clock, method.margin) for clock in clocks_of(rounds)},
        decisive=decisive(rounds[0]),
        stopped_by=timing.stopped_by,
        pace=timing.pace,
        seconds=time.monotonic() - began,
    )


def _steps(arm: Steps | Callable[[], Any]) -> Steps:
    return Calls(arm) if callable(arm) else arm

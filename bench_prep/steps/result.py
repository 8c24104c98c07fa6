"""What a run found, whole: both arms, what the probes cost, what the fast path changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench_prep.errors import Inconclusive
from bench_prep.measure.comparison import Judgement, judge
from bench_prep.measure.records import ARMS, Block, Round
from bench_prep.measure.verdict import Effect, effect_of, log_ratio
from bench_prep.steps.frames import Arm
from bench_prep.steps.parts import FAST, OWN
from bench_prep.steps.stretches import NO_DECODE, Stretch

#: The probes may cost so much of a step.
MOST_PROBE_COST = 0.02
#: A change of the step up to this is none.
MARGIN = 0.01


@dataclass(frozen=True)
class ProbeCost:
    """What the probes cost in one arm.

    Attributes:
        counted: records of a step times what one costs in the tight loop, as a share of the step.
        measured: steps with the probes against those without, in alternating stretches.
    """

    counted: float
    measured: Effect

    @property
    def too_much(self) -> bool:
        """Whether it is certain that they cost more than they may."""
        low = self.measured.low
        return self.counted > MOST_PROBE_COST or (low is not None and low > MOST_PROBE_COST)


@dataclass(frozen=True)
class Found:
    """A run: `change` is of the step without probes, None without the fast path."""

    arms: list[Arm]
    costs: dict[str, ProbeCost]
    record_ns: tuple[float, float]
    change: Judgement | None

    @property
    def inconclusive(self) -> bool:
        """Whether there is a fast path, and no verdict on it."""
        return self.change is not None and self.change.verdict == "inconclusive"


def steps_by_stretch(
    steps: Sequence[Sequence[int]], stretches: Sequence[Stretch]
) -> list[list[int]]:
    """The lengths of each stretch's steps that count, in ns."""
    result: list[list[int]] = [[] for _ in stretches]
    for (begin, index), (end, following) in pairwise(steps):
        if index >= 0 and following != NO_DECODE:
            result[index].append(end - begin)
    return result


def of_round(
    lengths: Sequence[list[int]],
    stretches: Sequence[Stretch],
    number: int,
    arm: str,
    recorded: bool,
) -> list[list[int]]:
    """The steps of a round's stretches of this kind, in their order."""
    wanted = Stretch(arm, recorded, number)
    return [some for some, one in zip(lengths, stretches, strict=True) if one == wanted]


def measured_cost(lengths: Sequence[list[int]], stretches: Sequence[Stretch], arm: str) -> Effect:
    """With the probes against without, one d of each round.

    Raises:
        Inconclusive: a stretch without steps.
    """
    ratios = []
    for number in range(stretches[-1].round + 1):
        off, on = (of_round(lengths, stretches, number, arm, kind) for kind in (False, True))
        if not all((*off, *on)):
            raise Inconclusive(f"a stretch of {arm} has no steps", "run again")
        before, after = (float(np.median(some)) for some in (off[0], off[-1]))
        recorded = np.exp(np.mean([np.log(np.median(some)) for some in on]))
        ratios.append(log_ratio(before, float(recorded), after))
    return effect_of(ratios)


def change_of(lengths: Sequence[list[int]], stretches: Sequence[Stretch]) -> Judgement:
    """The fast path against vLLM's own preparation: the step without probes, A/B/A in rounds."""
    rounds = []
    for number in range(stretches[-1].round + 1):
        before, after = of_round(lengths, stretches, number, OWN, False)
        (fast,) = of_round(lengths, stretches, number, FAST, False)
        blocks = [
            Block(name, {"step": some})
            for name, some in zip(ARMS, (before, fast, after), strict=True)
        ]
        rounds.append(Round((blocks[0], blocks[1], blocks[2])))
    return judge(rounds, "step", MARGIN)


def result_of(
    arms: list[Arm],
    steps: Sequence[Sequence[int]],
    stretches: Sequence[Stretch],
    record_ns: tuple[float, float],
) -> Found:
    """Everything that is shown and written.

    Raises:
        Inconclusive: a stretch without steps.
    """
    lengths = steps_by_stretch(steps, stretches)
    costs = {
        arm.name: ProbeCost(
            arm.records * max(record_ns) / arm.step, measured_cost(lengths, stretches, arm.name)
        )
        for arm in arms
    }
    change = change_of(lengths, stretches) if len(arms) == 2 else None
    return Found(arms, costs, record_ns, change)

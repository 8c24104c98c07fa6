"""The verdict: a paired estimate per round, an exact interval over rounds, and a rule.

    d      = ln(candidate) - (ln(baseline_before) + ln(baseline_after)) / 2     of one round
    effect = exp(d) - 1: the change of the time as a fraction of the baseline, -0.5 is twice as fast

Before and after count alike, so a linear drift cancels and neither arm is flattered, unlike in
the published figures with their faster baseline (`statistics`). docs/measuring.md has the why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from bench_prep.measure.records import CLOCKS, Clock, Round
from bench_prep.measure.statistics import block_medians_ms

Verdict = Literal["faster", "slower", "same", "inconclusive", "different"]

#: Of the verdict's interval. With less, skewed noise would exceed one false verdict in a hundred.
CONFIDENCE = 0.998
#: Below, no interval over rounds has that confidence: 1 - 2 * 0.5**10 is the first above it.
ROUNDS_FOR_VERDICT = 10
#: Up to so many values the signed ranks' distribution is exact, then it is the normal one.
_EXACT = 200
#: More values than this are merged into means of neighbours (batch means; Law, Simulation
#: Modeling and Analysis, 5th edition, section 9.5.3), which bounds the memory.
_MOST = 400


@dataclass(frozen=True)
class Effect:
    """candidate / baseline - 1 over the rounds, and its interval of `CONFIDENCE`.

    The ends are None below `ROUNDS_FOR_VERDICT` rounds.
    """

    value: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def ratio(self) -> float:
        """candidate / baseline."""
        return 1 + self.value

    @property
    def half_width(self) -> float:
        """Half of the interval's width; infinite without an interval."""
        return math.inf if self.low is None or self.high is None else (self.high - self.low) / 2


def log_ratio(before_ms: float, candidate_ms: float, after_ms: float) -> float:
    """d of one round, from its block medians in any unit.

    Raises:
        ValueError: a time that is not above zero.
    """
    return math.log(candidate_ms) - (math.log(before_ms) + math.log(after_ms)) / 2


@lru_cache(maxsize=512)
def _tail(count: int, confidence: float) -> int:
    """How many Walsh averages lie outside the interval on each side.

    The largest number k for which the signed-rank sum of `count` values is below k with a
    probability of at most half of what `confidence` leaves; 0: no such interval.
    """
    half = (1 - confidence) / 2
    pairs = count * (count + 1) // 2
    if count > _EXACT:
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return math.floor(pairs / 2 + float(norm.ppf(half)) * deviation) + 1
    # The sum of those of the ranks 1 to n whose sign is positive, each with probability 1/2.
    probability = np.zeros(pairs + 1)
    probability[0] = 1.0
    for rank in range(1, count + 1):
        probability[rank:] = (probability[rank:] + probability[:-rank]) / 2
        probability[:rank] /= 2
    return int(np.searchsorted(np.cumsum(probability), half, side="right"))


def walsh_interval(
    values: Sequence[float] | NDArray[np.float64], confidence: float = CONFIDENCE
) -> tuple[float, float | None, float | None]:
    """The centre of symmetrically scattered values and the ends of its exact interval.

    The centre is the median of all Walsh averages (x_i + x_j) / 2, i <= j (Hodges and Lehmann,
    Annals of Mathematical Statistics 34, 1963). The interval has every centre that Wilcoxon's
    signed-rank test does not reject: the test gives each value the opposite sign in all 2**n
    ways, which resamples the signs of whole rounds and needs no random numbers (Hollander,
    Wolfe and Chicken, Nonparametric Statistical Methods, 3rd edition, sections 3.1 to 3.3). The
    ends are None where `confidence` needs more values.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"no centre of {list(values)}")
    if array.size > _MOST:
        groups = np.array_split(array, array.size // -(-array.size // _MOST))
        array = np.array([group.mean() for group in groups])
    first, second = np.triu_indices(array.size)
    averages = np.sort((array[first] + array[second]) / 2)
    tail = _tail(array.size, confidence)
    centre = float(np.median(averages))
    if tail < 1:
        return centre, None, None
    return centre, float(averages[tail - 1]), float(averages[-tail])


def effect_of(log_ratios: Sequence[float]) -> Effect:
    """The effect over rounds, from each round's d.

    Raises:
        ValueError: no rounds, or a d that is not finite.
    """
    centre, low, high = walsh_interval(log_ratios)

    def change(d: float | None) -> float | None:
        return None if d is None else math.expm1(d)

    return Effect(math.expm1(centre), change(low), change(high), len(log_ratios))


def verdict(effect: Effect, margin: float, equal: bool = True) -> Verdict:
    """What is said about the candidate; `margin` is a fraction of the baseline's time.

    1. `different` if the outputs are not equal, whatever the times are.
    2. `inconclusive` below `ROUNDS_FOR_VERDICT` rounds.
    3. `same`, no difference larger than the margin, if the whole interval lies within it.
    4. `faster` or `slower` if the interval does not contain 0 and the change is the margin or more.
    5. otherwise `inconclusive`.
    """
    if not equal:
        return "different"
    if effect.low is None or effect.high is None:
        return "inconclusive"
    if -margin <= effect.low and effect.high <= margin:
        return "same"
    if effect.high < 0 and effect.value <= -margin:
        return "faster"
    return "slower" if effect.low > 0 and effect.value >= margin else "inconclusive"


def starts_differ(times: Sequence[tuple[float, ...]], said: Verdict, margin: float) -> float | None:
    """By what fraction two starts of the baseline differ, if by too much for what is said.

    `times` are before, candidate and after of each round, where before and after are of two
    processes; no interval over their rounds knows by how much processes of the same code differ.
    `faster` and `slower` need a candidate that is further from the nearer one than they are from
    each other, `same` two that differ by the margin at most.
    """
    logs = np.log(np.array(times))
    drift = abs(float(np.median(logs[:, 2] - logs[:, 0])))
    if said == "same":
        doubtful = drift > math.log1p(margin)
    else:
        before, after = (float(np.median(logs[:, 1] - logs[:, arm])) for arm in (0, 2))
        doubtful = (min(-before, -after) if said == "faster" else min(before, after)) <= drift
    return math.expm1(drift) if doubtful else None


def clocks_of(rounds: Sequence[Round]) -> list[Clock]:
    """The clocks that all blocks have, in their order.

    Raises:
        ValueError: the blocks do not all have the same clocks.
    """
    present = [set(block.samples) for one in rounds for block in one.blocks]
    if any(clocks != present[0] for clocks in present):
        raise ValueError("the blocks of a run do not all have the same clocks")
    return [clock for clock in CLOCKS if clock in present[0]]


def decisive(one: Round) -> Clock:
    """The clock that decides when the timing ends and which exit code follows: ready or host."""
    return "ready" if "ready" in one.blocks[0].samples else "host"


def round_log_ratio(one: Round, clock: Clock) -> float:
    """d of a round on one clock, from the medians of its blocks.

    Raises:
        ValueError: a time that is not above zero.
    """
    return log_ratio(*block_medians_ms(one, clock))

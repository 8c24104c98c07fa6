"""Does a time grow along an axis? A paired estimate for each two points, and a rule.

    d     = ln(time at j) - ln(time at i)      of one lap, in which all points were timed
    ratio = exp(centre of all d)

A lap visits the points in drawn order within a second or so: what lasts longer is in both times of
a d, and what does not has either sign. Centre and interval are those of the verdicts
(`measure.verdict.walsh_interval`). The intervals of all pairs of points hold together
(Bonferroni 1936), so that the largest difference, which is looked for, is no chance among many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from bench_prep.measure.verdict import CONFIDENCE, walsh_interval

#: Half of an interval's width is at most this part of the margin when an axis is settled: a
#: difference of half the margin is then known to be flat.
WIDTH_OF_MARGIN = 0.25
Shape = Literal["flat", "grows", "falls", "inconclusive"]


@dataclass(frozen=True)
class Pair:
    """Two points of an axis: how many times as long the larger value takes as the smaller one.

    The ends of the interval are None where there are too few laps.
    """

    smaller: int
    larger: int
    ratio: float
    low: float | None
    high: float | None

    @property
    def reversed(self) -> Pair:
        """The same, seen from the other point."""
        ends = [None if end is None else 1 / end for end in (self.high, self.low)]
        return Pair(self.larger, self.smaller, 1 / self.ratio, ends[0], ends[1])

    @property
    def within(self) -> float:
        """No larger difference is in the interval: a fraction, infinite without an interval."""
        if self.low is None or self.high is None:
            return math.inf
        return max(self.high, 1 / self.low) - 1


@dataclass(frozen=True)
class Growth:
    """What an arm's time does along an axis.

    Attributes:
        shape: the verdict.
        fastest, slowest: the two points that it is about: those of the largest growth, of the
            largest fall, or else of the largest difference.
        ratio, low, high: how many times as long the slowest point takes as the fastest, and the
            ends of its interval, which holds for all pairs of points together.
        within: no two points certainly differ by more than this fraction.
        laps: in which all of the axis's points count.
    """

    shape: Shape
    fastest: int
    slowest: int
    ratio: float
    low: float | None
    high: float | None
    within: float
    laps: int


def pairs_of(times: Mapping[int, Sequence[float]]) -> list[Pair]:
    """Each two points; `times[value][lap]` is above zero, or not a number where it does not count.

    Pairs that were never timed in one lap are left out.

    Raises:
        ValueError: fewer than two points, or points with different numbers of laps.
    """
    values = sorted(times)
    if len(values) < 2 or len({len(times[value]) for value in values}) != 1:
        raise ValueError("growth is seen between points with the same laps")
    logs = {value: np.log(np.asarray(times[value], dtype=np.float64)) for value in values}
    both = list(combinations(values, 2))
    confidence = 1 - (1 - CONFIDENCE) / len(both)
    pairs = []
    for smaller, larger in both:
        d = logs[larger] - logs[smaller]
        d = d[np.isfinite(d)]
        if d.size:
            centre, *ends = walsh_interval(d, confidence)
            low, high = (None if end is None else math.exp(end) for end in ends)
            pairs.append(Pair(smaller, larger, math.exp(centre), low, high))
    return pairs


def growth_of(times: Mapping[int, Sequence[float]], margin: float) -> Growth | None:
    """What the time does along the axis; None where no two points have a lap in common.

    - flat: all intervals lie within the margin, a fraction.
    - grows: some larger value takes certainly longer, and the estimate is the margin or more.
    - falls: not that, but some larger value takes certainly less, likewise.
    - inconclusive: none of these.

    Raises:
        ValueError: as `pairs_of`.
    """
    pairs = pairs_of(times)
    if not pairs:
        return None
    grown = [p for p in pairs if p.low is not None and p.low > 1 and p.ratio >= 1 + margin]
    fallen = [p for p in pairs if p.high is not None and p.high < 1 and p.ratio <= 1 / (1 + margin)]
    complete = len(pairs) == math.comb(len(times), 2)
    within = max(pair.within for pair in pairs) if complete else math.inf
    shape: Shape
    if within <= margin:
        shape = "flat"
    else:
        shape = "grows" if grown else "falls" if fallen else "inconclusive"
    about = {"grows": grown, "falls": fallen}.get(shape, pairs)
    pair = max(about, key=lambda one: abs(math.log(one.ratio)))
    if pair.ratio < 1:
        pair = pair.reversed
    laps = int(np.isfinite(np.array([times[value] for value in times])).all(axis=0).sum())
    return Growth(shape, pair.smaller, pair.larger, pair.ratio, pair.low, pair.high, within, laps)


def laps_needed(points: int) -> int:
    """The fewest laps that give the intervals of so many points: 2 * 0.5**laps is what the signed
    ranks of that many leave at most, for each pair."""
    return math.ceil(math.log2(2 * math.comb(points, 2) / (1 - CONFIDENCE)))


def is_settled(times: Mapping[int, Sequence[float]], margin: float) -> bool:
    """Whether all intervals are as narrow as the margin asks for, wherever they lie."""
    pairs = pairs_of(times)
    return len(pairs) == math.comb(len(times), 2) and all(
        pair.low is not None
        and pair.high is not None
        and math.log(pair.high / pair.low) / 2 <= WIDTH_OF_MARGIN * margin
        for pair in pairs
    )

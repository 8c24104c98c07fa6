"""The published figures: one block's percentiles, one round's comparison, medians over rounds.

docs/results.md has the formulas in words. Times are in milliseconds unless a name says
nanoseconds; drift, reduction and shares are fractions, not percent. What they say about a change
is decided by `verdict`, because the faster baseline of two makes an equal candidate look slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.stats import quantile_test

from bench_prep.measure.records import Clock, Round

#: Confidence of the intervals of the figures.
CONFIDENCE = 0.95
#: With fewer rounds not even the range of all of them covers the median with 95 %:
#: its confidence is 1 - 2 * 0.5**n, which is 93.75 % for five and 96.9 % for six.
ROUNDS_FOR_INTERVAL = 6

_NS_PER_MS = 1e6


@dataclass(frozen=True)
class BlockSummary:
    """One clock of one block: percentiles over its steps in milliseconds, and their number."""

    median_ms: float
    p5_ms: float
    p95_ms: float
    p99_ms: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """One round's figures. `drift` and `reduction` are fractions, `speedup` is a ratio."""

    baseline_before_ms: float
    candidate_ms: float
    baseline_after_ms: float
    baseline_ms: float
    drift: float
    saved_ms: float
    speedup: float
    reduction: float


@dataclass(frozen=True)
class Figure:
    """A median over rounds and the ends of its 95 % interval, None where there is none."""

    median: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Figures:
    """What a run says: each field of `Comparison` as its median over `rounds` rounds."""

    baseline_before_ms: Figure
    candidate_ms: Figure
    baseline_after_ms: Figure
    baseline_ms: Figure
    drift: Figure
    saved_ms: Figure
    speedup: Figure
    reduction: Figure
    rounds: int


def _require_times(values: Sequence[float], unit: str) -> None:
    for index, value in enumerate(values):
        if not math.isfinite(value) or value <= 0:
            raise ValueError(
                f"time {index} is {value} {unit}: a time must be finite and above zero"
            )


def summarize(samples_ns: Sequence[int]) -> BlockSummary:
    """The median and the 5th, 95th and 99th percentile of one block's steps.

    `samples_ns` has one time per step in nanoseconds; the result is in milliseconds. Between
    two steps the percentile is interpolated linearly (Hyndman and Fan, type 7, NumPy's default).

    Raises:
        ValueError: no samples, or one that is not finite and above zero.
    """
    if len(samples_ns) == 0:
        raise ValueError("a block without samples has no percentiles")
    samples = np.asarray(samples_ns, dtype=np.float64)
    if not (np.isfinite(samples).all() and (samples > 0).all()):
        _require_times([float(value) for value in samples], "ns")
    p5, median, p95, p99 = (float(v) / _NS_PER_MS for v in np.percentile(samples, [5, 50, 95, 99]))
    return BlockSummary(median_ms=median, p5_ms=p5, p95_ms=p95, p99_ms=p99, n=len(samples))


def block_medians_ms(one: Round, clock: Clock) -> tuple[float, float, float]:
    """The median step of a round's three blocks on one clock, in milliseconds.

    Of the steps that count (`Block.times`).

    Raises:
        ValueError: a block without such steps, or a time that is not above zero.
    """
    before, candidate, after = (summarize(b.times(clock)).median_ms for b in one.blocks)
    return before, candidate, after


def block_means_ms(one: Round, clock: Clock) -> tuple[float, float, float]:
    """The mean step of a round's three blocks, likewise; it follows the longest steps."""
    before, candidate, after = (fmean(b.times(clock)) / _NS_PER_MS for b in one.blocks)
    return before, candidate, after


def compare(before_ms: float, candidate_ms: float, after_ms: float) -> Comparison:
    """One round's figures from its three block medians, in milliseconds.

    baseline = min(before, after); drift = |before - after| / baseline;
    saved = baseline - candidate; speedup = baseline / candidate;
    reduction = 1 - candidate / baseline.

    Raises:
        ValueError: a time that is not finite and above zero.
    """
    _require_times((before_ms, candidate_ms, after_ms), "ms")
    baseline_ms = min(before_ms, after_ms)
    return Comparison(
        baseline_before_ms=before_ms,
        candidate_ms=candidate_ms,
        baseline_after_ms=after_ms,
        baseline_ms=baseline_ms,
        drift=abs(before_ms - after_ms) / baseline_ms,
        saved_ms=baseline_ms - candidate_ms,
        speedup=baseline_ms / candidate_ms,
        reduction=1 - candidate_ms / baseline_ms,
    )


def median_figure(values: Sequence[float]) -> Figure:
    """The median of one value per round, with its exact 95 % interval, in the values' unit.

    The interval's ends are order statistics chosen by the binomial distribution, so nothing is
    assumed about the shape of the noise (`scipy.stats.quantile_test`, after Conover, Practical
    Nonparametric Statistics, 3rd edition, section 3.2). Below `ROUNDS_FOR_INTERVAL` values no
    such interval exists and the ends are None.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    if len(values) == 0 or not all(math.isfinite(value) for value in values):
        raise ValueError(f"no median over rounds of {list(values)}")
    median = float(np.median(values))
    if len(values) < ROUNDS_FOR_INTERVAL:
        return Figure(median)
    test = quantile_test(list(values), q=median, p=0.5)
    interval = test.confidence_interval(confidence_level=CONFIDENCE)
    return Figure(median, float(interval.low), float(interval.high))


def over_rounds(comparisons: Sequence[Comparison]) -> Figures:
    """Each figure as its median over the rounds, with its interval.

    Medians do not add up: with several rounds `saved_ms` is the median of the rounds' savings,
    not the difference of two medians.

    Raises:
        ValueError: no rounds.
    """
    if not comparisons:
        raise ValueError("no finished round: there is nothing to summarize")

    def over(field: str) -> Figure:
        return median_figure([getattr(comparison, field) for comparison in comparisons])

    return Figures(
        baseline_before_ms=over("baseline_before_ms"),
        candidate_ms=over("candidate_ms"),
        baseline_after_ms=over("baseline_after_ms"),
        baseline_ms=over("baseline_ms"),
        drift=over("drift"),
        saved_ms=over("saved_ms"),
        speedup=over("speedup"),
        reduction=over("reduction"),
        rounds=len(comparisons),
    )


def cumulative_saving_ms(output_tokens: int, saved_ms: float) -> float:
    """(N - 1) * saved, in milliseconds: the first of N output tokens comes from the prefill.

    Raises:
        ValueError: fewer than one output token.
    """
    if output_tokens < 1:
        raise ValueError(f"{output_tokens} output tokens: a request has at least one")
    return (output_tokens - 1) * saved_ms


def share_of_step(saved_ms: float, tpot_ms: float) -> float:
    """saved / TPOT as a fraction; both in milliseconds.

    Raises:
        ValueError: a TPOT that is not finite and above zero.
    """
    _require_times((tpot_ms,), "ms")
    return saved_ms / tpot_ms

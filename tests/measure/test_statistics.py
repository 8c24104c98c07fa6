"""The formulas, against published numbers, identities and exact coverage."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_prep.measure.statistics import (
    compare,
    cumulative_saving_ms,
    median_figure,
    over_rounds,
    share_of_step,
    summarize,
)

times = st.floats(min_value=1e-6, max_value=1e5, allow_nan=False)


def test_published_blocks() -> None:
    published = compare(0.259076, 0.101048, 0.258436)
    assert published.baseline_ms == 0.258436
    assert published.saved_ms == pytest.approx(0.157388, abs=1e-12)
    assert f"{published.speedup:.4f}" == "2.5576"
    assert f"{100 * published.reduction:.1f}" == "60.9"
    assert f"{100 * published.drift:.2f}" == "0.25"
    assert f"{100 * share_of_step(published.saved_ms, 45):.2f}" == "0.35"


@given(times, times, times)
def test_identities(before: float, candidate: float, after: float) -> None:
    one = compare(before, candidate, after)
    assert one.saved_ms == one.baseline_ms - candidate
    assert one.baseline_ms <= before and one.baseline_ms <= after
    assert one.reduction == pytest.approx(1 - 1 / one.speedup, abs=1e-6, rel=1e-6)
    assert (one.saved_ms > 0) == (one.speedup > 1)
    assert one.drift >= 0


@given(times, times, times)
def test_order_of_the_baselines_does_not_matter(
    before: float, candidate: float, after: float
) -> None:
    one, other = compare(before, candidate, after), compare(after, candidate, before)
    for field in ("baseline_ms", "drift", "saved_ms", "speedup", "reduction"):
        assert getattr(one, field) == getattr(other, field)


@given(times, times, times, st.floats(min_value=0.01, max_value=100))
def test_ratios_do_not_depend_on_the_unit(a: float, b: float, c: float, scale: float) -> None:
    one, scaled = compare(a, b, c), compare(a * scale, b * scale, c * scale)
    assert scaled.speedup == pytest.approx(one.speedup)
    assert scaled.drift == pytest.approx(one.drift, rel=1e-9, abs=1e-9)
    rounding = 1e-9 * scale * (one.baseline_ms + b)
    assert scaled.saved_ms == pytest.approx(one.saved_ms * scale, abs=rounding)


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_impossible_times_are_refused(bad: float, place: int) -> None:
    blocks = [0.2, 0.1, 0.2]
    blocks[place] = bad
    with pytest.raises(ValueError, match=f"time {place} is .* finite and above zero"):
        compare(*blocks)


def test_percentiles_of_one_to_a_hundred_and_one() -> None:
    samples = [1_000_000 * n for n in range(1, 102)]
    random.Random(3).shuffle(samples)
    block = summarize(samples)
    assert (block.median_ms, block.p5_ms, block.p95_ms, block.p99_ms) == (51, 6, 96, 100)
    assert block.n == 101


def test_percentiles_between_two_steps_are_interpolated() -> None:
    block = summarize([1_000_000, 3_000_000])
    assert block.median_ms == 2
    assert block.p5_ms == pytest.approx(1.1)
    assert block.p95_ms == pytest.approx(2.9)


@given(st.lists(st.integers(min_value=1, max_value=10**10), min_size=1))
def test_percentiles_are_in_order_and_in_range(samples: list[int]) -> None:
    block = summarize(samples)
    ordered = [block.p5_ms, block.median_ms, block.p95_ms, block.p99_ms]
    assert ordered == sorted(ordered)
    assert min(samples) / 1e6 <= block.p5_ms * (1 + 1e-12)
    assert block.p99_ms <= max(samples) / 1e6 * (1 + 1e-12)


@pytest.mark.parametrize("samples", [[], [5, 0], [5, -1]])
def test_impossible_samples_are_refused(samples: list[int]) -> None:
    with pytest.raises(ValueError):
        summarize(samples)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_fewer_than_six_rounds_have_no_interval(rounds: int) -> None:
    figure = median_figure([float(n) for n in range(rounds)])
    assert (figure.low, figure.high) == (None, None)
    assert figure.median == (rounds - 1) / 2


@pytest.mark.parametrize("rounds", range(6, 30))
def test_interval_is_the_narrowest_with_at_least_95_percent(rounds: int) -> None:
    figure = median_figure([float(n) for n in range(1, rounds + 1)])
    assert figure.low is not None and figure.high is not None
    below, above = int(figure.low) - 1, rounds - int(figure.high)

    def missed(count: int) -> float:
        """P(at most `count` of the rounds lie on one given side of the true median)."""
        return sum(math.comb(rounds, k) for k in range(count + 1)) / 2**rounds

    assert below == above, "symmetric"
    assert missed(below) + missed(above) <= 0.05
    assert missed(below + 1) + missed(above + 1) > 0.05, "one order statistic further in is too few"


def test_interval_covers_the_true_median_of_skewed_noise() -> None:
    random_ = random.Random(7)
    true_median = math.exp(1.0)
    hits = 0
    for _ in range(1000):
        figure = median_figure([random_.lognormvariate(1.0, 0.8) for _ in range(9)])
        assert figure.low is not None and figure.high is not None
        hits += figure.low <= true_median <= figure.high
    # Exact coverage of the 2nd to 8th of nine is 96.1 %; 4 standard deviations are 2.5 points.
    assert 936 <= hits <= 986


def test_medians_over_rounds() -> None:
    figures = over_rounds([compare(2, 1, 2), compare(4, 1, 4), compare(9, 1, 10)])
    assert figures.rounds == 3
    assert figures.speedup.median == 4
    assert figures.saved_ms.median == 3
    assert figures.baseline_after_ms.median == 4
    assert figures.drift.median == 0


def test_no_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="no finished round"):
        over_rounds([])


def test_cumulative_saving_leaves_out_the_first_token() -> None:
    assert cumulative_saving_ms(1, 0.5) == 0
    assert cumulative_saving_ms(128, 0.5) == 63.5
    with pytest.raises(ValueError):
        cumulative_saving_ms(0, 0.5)


@pytest.mark.parametrize("tpot", [0.0, -1.0, math.nan, math.inf])
def test_share_needs_a_tpot(tpot: float) -> None:
    with pytest.raises(ValueError):
        share_of_step(0.1, tpot)

"""Flat, growing or not known: on times whose truth is known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from bench_prep.sweep.growth import Growth, growth_of, is_settled, laps_needed, pairs_of

Floats = NDArray[np.float64]
VALUES = (1, 4, 32, 1024)
TRIALS, LAPS, MARGIN = 400, 20, 0.1
BEYOND = 0.001
FALSE = 0.005
RNG = np.random.default_rng(2026)


def most(promised: float) -> int:
    """More hits than this come in one of a thousand such sets where a hit has this chance."""
    return int(binom.isf(BEYOND, TRIALS, promised))


def judged(times: dict[int, list[float]], margin: float = MARGIN) -> Growth:
    found = growth_of(times, margin)
    assert found is not None
    return found


def normal(shape: tuple[int, ...]) -> Floats:
    return RNG.normal(0, 0.05, shape)


def heavy(shape: tuple[int, ...]) -> Floats:
    return RNG.standard_t(2, shape) * 0.03


def skewed(shape: tuple[int, ...]) -> Floats:
    return RNG.exponential(0.06, shape)


def outliers(shape: tuple[int, ...]) -> Floats:
    return normal(shape) + (RNG.random(shape) < 0.05) * RNG.exponential(1.0, shape)


NOISES = [normal, heavy, skewed, outliers]
Noise = Callable[[tuple[int, ...]], Floats]


def series(noise: Noise, slopes: Floats, laps: int = LAPS) -> list[dict[int, list[float]]]:
    """Trials of laps in drawn order, on a machine whose level wanders by tens of per cent."""
    made = []
    for _ in range(TRIALS):
        steps = laps * len(VALUES)
        level = np.cumsum(RNG.normal(0, 0.01, steps)) + np.linspace(0, 0.3, steps)
        order = np.array([RNG.permutation(len(VALUES)) for _ in range(laps)])
        logs = np.empty((laps, len(VALUES)))
        np.put_along_axis(logs, order, level.reshape(laps, len(VALUES)), axis=1)
        logs += noise((laps, len(VALUES))) + np.log(slopes)
        times = np.exp(logs)
        made.append({value: times[:, i].tolist() for i, value in enumerate(VALUES)})
    return made


FLAT = np.ones(4)


@pytest.mark.parametrize("noise", NOISES)
def test_what_is_flat_is_not_called_growing(noise: Noise) -> None:
    """With a margin far below the noise, so that the intervals alone decide."""
    shapes = Counter(judged(times, 1e-6).shape for times in series(noise, FLAT))
    assert shapes["grows"] + shapes["falls"] <= most(FALSE), shapes
    assert shapes["flat"] == 0


@pytest.mark.parametrize("noise", NOISES)
def test_the_intervals_of_all_pairs_hold_together(noise: Noise) -> None:
    truth = dict(zip(VALUES, (1.0, 1.1, 1.3, 0.9), strict=True))
    wrong = 0
    for times in series(noise, np.array(list(truth.values()))):
        missed = [
            not (p.low <= truth[p.larger] / truth[p.smaller] <= p.high)
            for p in pairs_of(times)
            if p.low is not None and p.high is not None
        ]
        assert len(missed) == 6
        wrong += any(missed)
    assert wrong <= most(FALSE)


@pytest.mark.parametrize("step", [1 + MARGIN, 1.2, 1 / (1 + MARGIN), 0.8])
def test_what_differs_by_the_margin_is_not_called_flat(step: float) -> None:
    """At any single point, the middle ones too."""
    for place in (1, 3):
        slopes = FLAT.copy()
        slopes[place] = step
        shapes = Counter(judged(times).shape for times in series(normal, slopes))
        assert shapes["flat"] <= most(FALSE), shapes


def test_growth_is_found_and_said_of_the_right_points() -> None:
    found = [judged(times) for times in series(normal, np.array([1.0, 1.0, 1.1, 1.5]))]
    grown = [one for one in found if one.shape == "grows"]
    assert len(grown) >= 0.99 * TRIALS
    assert all(one.slowest == 1024 and one.fastest in (1, 4) for one in grown)
    # Only one of two equal points is the fastest by chance; that is what the interval is for.
    assert np.median([one.ratio for one in grown]) == pytest.approx(1.5, abs=0.04)
    held = sum(one.low <= 1.5 <= one.high for one in grown if one.low and one.high)
    assert held >= len(grown) - most(FALSE)


def test_a_fall_is_no_growth() -> None:
    shapes = Counter(
        judged(times).shape for times in series(normal, np.array([1.5, 1.3, 1.1, 1.0]))
    )
    assert shapes["falls"] >= 0.99 * TRIALS and shapes["grows"] == 0


def test_a_hump_in_the_middle_is_growth() -> None:
    """The ends are equal: a line through the points would see nothing."""
    found = [judged(times) for times in series(normal, np.array([1.0, 1.5, 1.5, 1.0]))]
    assert sum(one.shape == "grows" for one in found) >= 0.99 * TRIALS
    assert all(one.fastest == 1 for one in found if one.shape == "grows")


def test_flat_is_found_where_the_noise_allows_it() -> None:
    quiet = [judged(times) for times in series(lambda shape: normal(shape) / 5, FLAT)]
    assert sum(one.shape == "flat" for one in quiet) >= 0.99 * TRIALS
    assert all(one.within <= MARGIN for one in quiet if one.shape == "flat")
    loud = [judged(times).shape for times in series(lambda shape: normal(shape) * 4, FLAT)]
    assert loud.count("inconclusive") >= 0.9 * TRIALS


def test_a_drift_is_in_no_difference() -> None:
    """Without noise a lap's drawn order is all that is left of a drift of 30 per cent."""
    found = [judged(times) for times in series(lambda shape: np.zeros(shape), FLAT)]
    assert {one.shape for one in found} == {"flat"}


@pytest.mark.parametrize(("points", "least"), [(2, 10), (3, 12), (4, 13), (5, 14)])
def test_the_fewest_laps(points: int, least: int) -> None:
    """2**(1 - n) must be at most 0.2 per cent shared by all pairs."""
    assert 2.0 ** (1 - least) <= 0.002 / math.comb(points, 2) < 2.0 ** (2 - least)
    for laps in (least - 1, least):
        growth = judged({value: [2.0] * laps for value in range(points)})
        assert growth.shape == ("flat" if laps >= least else "inconclusive")
        assert is_settled({value: [2.0] * laps for value in range(points)}, MARGIN) == (
            laps >= least
        )
        assert growth.within == (0 if laps >= least else math.inf)


def test_laps_that_do_not_count() -> None:
    times = {1: [1.0] * 12 + [math.nan] * 3, 2: [math.nan] * 3 + [2.0] * 12}
    growth = judged(times)
    assert (growth.laps, growth.ratio, growth.shape) == (9, 2.0, "inconclusive")
    assert growth_of({1: [math.nan] * 4, 2: [1.0] * 4}, MARGIN) is None
    # A pair that was never timed together: nothing is known of it, however flat the others are.
    apart = {1: [1.0] * 20 + [math.nan] * 20, 2: [math.nan] * 20 + [1.0] * 20, 3: [1.0] * 40}
    assert judged(apart).shape == "inconclusive"


def test_it_does_not_matter_in_which_order_points_are_given() -> None:
    (times,) = series(normal, np.array([1.0, 1.1, 1.2, 1.5]))[:1]
    assert judged(dict(reversed(times.items()))) == judged(times)


def test_nonsense_is_refused() -> None:
    for times in ({1: [1.0]}, {1: [1.0], 2: [1.0, 2.0]}, {}):
        with pytest.raises(ValueError, match="growth is seen between points"):
            growth_of(times, MARGIN)


def test_pairs_are_all_pairs() -> None:
    (times,) = series(normal, FLAT)[:1]
    assert [(p.smaller, p.larger) for p in pairs_of(times)] == list(combinations(VALUES, 2))


@pytest.mark.parametrize("points", [2, 4, 11])
def test_so_many_laps_are_needed_for_intervals(points: int) -> None:
    needed = laps_needed(points)
    times = {value: np.exp(normal((needed,))).tolist() for value in range(1, points + 1)}
    assert all(pair.low is not None for pair in pairs_of(times))
    fewer = {value: some[1:] for value, some in times.items()}
    assert all(pair.low is None for pair in pairs_of(fewer))

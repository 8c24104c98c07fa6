"""How often the method is wrong, on series whose truth is known.

Each trial is a whole timing: rounds of interleaved slices until the method's own criteria are met,
here after at most 30 rounds. Seeds are fixed; a bound is what fewer than one in a thousand sets of
so many trials would exceed if the promise were just kept (`scipy.stats.binom`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm

from bench_prep.measure.statistics import compare
from bench_prep.measure.stopping import Progress, criteria
from bench_prep.measure.verdict import CONFIDENCE, Effect, effect_of, verdict, walsh_interval
from bench_prep.settings import Method

Floats = NDArray[np.float64]

#: Steps of one trial, in the order in which they are taken: rounds, slices, arms, steps.
ROUNDS, SLICES, ARMS, STEPS = 30, 10, 3, 10
SHAPE = (ROUNDS, SLICES, ARMS, STEPS)
TRIALS = 400
METHOD = Method(margin=0.01, budget_s=ROUNDS)
#: What is promised: false verdicts at most, planted 2 % found at least, as shares of all runs.
FALSE, FOUND = 0.01, 0.95
BEYOND = 0.001


def most(promised: float, trials: int = TRIALS) -> int:
    """More hits than this come in one of a thousand such sets where a hit has this chance."""
    return int(binom.isf(BEYOND, trials, promised))


def least(promised: float, trials: int = TRIALS) -> int:
    return int(binom.ppf(BEYOND, trials, promised))


def settled(log_ratios: Floats) -> tuple[str, Effect]:
    """One trial: its rounds' d, of which as many are seen as the criteria ask for."""
    for count in range(1, len(log_ratios) + 1):
        progress = Progress(log_ratios[:count].tolist(), count, count, 1)
        if any(criterion.met(progress) for criterion in criteria(METHOD)):
            break
    effect = effect_of(log_ratios[:count].tolist())
    return verdict(effect, METHOD.margin), effect


def by_round(steps: Floats, interleaved: bool = True) -> Floats:
    """d of each round of `SHAPE` steps, from medians of blocks, as `Timing` takes them."""
    if not interleaved:  # whole blocks, one after the other
        blocks = steps.reshape(ROUNDS, ARMS, SLICES * STEPS)
    else:
        blocks = steps.reshape(SHAPE).swapaxes(1, 2).reshape(ROUNDS, ARMS, SLICES * STEPS)
    before, candidate, after = np.log(np.median(blocks, axis=2)).T
    return np.asarray(candidate - (before + after) / 2)


def planted(steps: Floats, slower: float) -> Floats:
    """The candidate's steps take `slower` longer, a fraction."""
    factor = np.array([1, 1 + slower, 1])[:, None]
    return (steps.reshape(SHAPE) * factor).ravel()


COUNT = int(np.prod(SHAPE))
TIME = np.linspace(0, 1, COUNT)


def white(rng: np.random.Generator, scale: float = 0.03) -> Floats:
    return 1 + np.abs(rng.normal(0, scale, COUNT))


def drift(rng: np.random.Generator) -> Floats:
    """Ten per cent over the run."""
    return white(rng) * (1 + 0.1 * TIME)


def autocorrelated(rng: np.random.Generator) -> Floats:
    """Disturbances that last for some slices: an autoregression of order 1 on slices."""
    shocks = rng.normal(0, 0.02, COUNT // STEPS)
    level = np.zeros_like(shocks)
    for index in range(1, len(shocks)):
        level[index] = 0.9 * level[index - 1] + shocks[index]
    return white(rng) * np.exp(np.repeat(level, STEPS))


def heavy_tails(rng: np.random.Generator) -> Floats:
    """Times without a variance: Pareto's distribution with exponent 1.5."""
    return 1 + 0.02 * rng.pareto(1.5, COUNT)


def outliers(rng: np.random.Generator) -> Floats:
    """One step in twenty is preempted for ten times as long as it takes."""
    return white(rng) + 10.0 * (rng.random(COUNT) < 0.05)


def modes(rng: np.random.Generator, share: float) -> Floats:
    """A state that is 15 % slower comes and goes: a Markov chain, in it for a slice on average."""
    lasts = np.array([[STEPS * (1 - share) / share], [STEPS]])
    changes = np.cumsum(rng.exponential(lasts, (2, 2 * COUNT // STEPS)).T)
    slow = 0.15 * (np.searchsorted(changes, np.arange(COUNT)) % 2)
    return white(rng) * (1 + slow)


def two_modes(rng: np.random.Generator) -> Floats:
    """The slow one for a quarter of the time."""
    return modes(rng, 0.25)


def balanced_modes(rng: np.random.Generator) -> Floats:
    """Each of them for half of the time, so that a median lies in either: the worst case."""
    return modes(rng, 0.5)


def level_shifts(rng: np.random.Generator) -> Floats:
    """The whole machine becomes up to a third slower or faster, three times in a run."""
    levels = rng.uniform(1, 1.3, 4)
    at = np.sort(rng.random(3))
    return white(rng) * levels[np.searchsorted(at, TIME)]


def skewed_rounds(rng: np.random.Generator) -> Floats:
    """Each block of its own is late by an exponential time, which interleaving cannot share."""
    late = rng.exponential(0.01, (ROUNDS, 1, ARMS, 1)) * np.ones(SHAPE)
    return white(rng) * (1 + late.ravel())


Series = Callable[[np.random.Generator], Floats]
SERIES: tuple[Series, ...] = (
    *(white, drift, autocorrelated, heavy_tails, outliers, two_modes, level_shifts),
    skewed_rounds,
)
named = pytest.mark.parametrize("series", SERIES, ids=lambda one: one.__name__)


def trials(series: Series, slower: float, seed: int) -> tuple[Counter[str], list[Effect]]:
    rng = np.random.default_rng(seed)
    found = [settled(by_round(planted(series(rng), slower))) for _ in range(TRIALS)]
    return Counter(said for said, _ in found), [effect for _, effect in found]


@pytest.mark.parametrize("series", [*SERIES, balanced_modes], ids=lambda one: one.__name__)
def test_equal_arms_are_not_called_different(series: Series) -> None:
    said, effects = trials(series, 0.0, seed=1)
    assert said["faster"] + said["slower"] <= most(FALSE), said
    covered = sum(e.low <= 0 <= e.high for e in effects if e.low is not None and e.high is not None)
    assert covered >= least(1 - FALSE)


@named
@pytest.mark.parametrize("slower", [0.02, -0.02])
def test_two_per_cent_are_found_and_never_as_their_opposite(series: Series, slower: float) -> None:
    said, _ = trials(series, slower, seed=2)
    right, wrong = ("slower", "faster") if slower > 0 else ("faster", "slower")
    assert said[wrong] == 0
    assert said["same"] <= most(FALSE)
    assert said[right] >= least(FOUND), said


def test_what_the_method_cannot_settle_it_calls_inconclusive() -> None:
    said, _ = trials(balanced_modes, 0.02, seed=3)
    assert said["inconclusive"] > TRIALS / 2
    assert said["faster"] == 0 and said["same"] <= most(FALSE)


@pytest.mark.parametrize("slower", [0.0, 0.02])
def test_a_drift_changes_the_estimate_by_no_more_than_chance(slower: float) -> None:
    with_drift, without = (
        np.array([effect.value for effect in trials(series, slower, seed)[1]])
        for series, seed in ((drift, 4), (white, 5))
    )
    scatter = np.hypot(*(one.std() / np.sqrt(TRIALS) for one in (with_drift, without)))
    assert abs(with_drift.mean() - without.mean()) <= norm.isf(BEYOND / 2) * scatter
    assert abs(with_drift.mean() - slower) <= norm.isf(BEYOND / 2) * with_drift.std() / TRIALS**0.5


def test_why_blocks_are_interleaved() -> None:
    """Whole blocks of the same steps meet different disturbances, and scatter more."""
    rng = np.random.default_rng(6)
    whole, sliced = (
        np.concatenate([by_round(autocorrelated(rng), interleaved) for _ in range(20)])
        for interleaved in (False, True)
    )
    assert whole.std() > 2 * sliced.std()


def test_why_the_interval_has_more_than_99_per_cent() -> None:
    """Where rounds are skewed, 99 % are not, and a promise would be broken."""
    rng = np.random.default_rng(7)
    late = rng.exponential(0.02, (4000, 30, ARMS))
    values = np.log1p(late)
    log_ratios = values[:, :, 1] - (values[:, :, 0] + values[:, :, 2]) / 2

    def missed(confidence: float) -> int:
        ends = (walsh_interval(row, confidence)[1:] for row in log_ratios)
        return sum(not low <= 0 <= high for low, high in ends)  # type: ignore[operator]

    assert missed(0.99) > most(0.01, len(log_ratios))
    assert missed(CONFIDENCE) <= most(FALSE, len(log_ratios))


def test_why_the_published_figures_decide_nothing() -> None:
    """One A/B/A of equal arms by the faster baseline, and a difference above the margin."""
    rng = np.random.default_rng(8)
    slower = 0
    for _ in range(TRIALS):
        blocks = autocorrelated(rng).reshape(ROUNDS, ARMS, SLICES * STEPS)[0]
        slower += compare(*np.median(blocks, axis=1)).reduction < -METHOD.margin
    assert slower > least(0.25)

"""How often verdicts were false or missed what was planted, with exact intervals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pandas as pd
from scipy.stats import binomtest

CONFIDENCE = 0.95
#: What the method promises: this share of false verdicts at most.
PROMISED_FALSE = 0.01
#: Percentages are sums and differences of decimal fractions.
_EPSILON = 1e-9


def is_false(effect_pct: float, verdict: str) -> bool:
    """A difference where there is none, or the opposite of the planted slow-down."""
    return verdict in (("faster", "slower") if effect_pct == 0 else ("faster",))


def is_missed(effect_pct: float, margin_pct: float, verdict: str) -> bool:
    """A slow-down of twice the margin or more that is not called `slower`, or one above the
    margin that is called `same`.

    At the margin and below it both are right: `same`, because it is no larger than the margin, and
    `slower`, because it is.
    """
    if effect_pct >= 2 * margin_pct - _EPSILON:
        return verdict != "slower"
    return effect_pct > margin_pct + _EPSILON and verdict == "same"


@dataclass(frozen=True)
class Share:
    """`hits` of `trials`, and the exact interval of `CONFIDENCE` (Clopper and Pearson 1934)."""

    hits: int
    trials: int

    @property
    def interval(self) -> tuple[float, float]:
        if not self.trials:
            return 0.0, 1.0
        ends = binomtest(self.hits, self.trials).proportion_ci(CONFIDENCE, method="exact")
        return float(ends.low), float(ends.high)


@dataclass(frozen=True)
class Tally:
    """All verdicts on what was planted alike, on one clock.

    Attributes:
        missed: None where nothing is large enough to be missed.
        inconclusive: among them those that were missed.
        held: how often the interval held the planted change, of those with an interval.
        change_pct: the median estimate.
        seconds: of a verdict, the median.
    """

    work: str
    clock: str
    condition: str
    effect_pct: float
    verdicts: dict[str, int]
    false: Share
    missed: Share | None
    inconclusive: Share
    held: Share
    change_pct: float
    seconds: float


def tally(frame: pd.DataFrame) -> list[Tally]:
    """One for each work, clock, condition and effect, in the order in which they appear.

    `frame` has the columns of `trial.Trial`.
    """
    by = ["work", "clock", "condition", "effect_pct"]
    return [_tally(group) for _, group in frame.groupby(by, sort=False)]


def _tally(group: pd.DataFrame) -> Tally:
    first = group.iloc[0]
    effect, margin, runs = float(first["effect_pct"]), float(first["margin_pct"]), len(group)
    verdicts = Counter(str(verdict) for verdict in group["verdict"])
    ended = group.dropna(subset=["low_pct", "high_pct"])
    held = (ended["low_pct"] <= effect) & (effect <= ended["high_pct"])

    def counted(count: int) -> Share:
        return Share(count, runs)

    return Tally(
        work=str(first["work"]),
        clock=str(first["clock"]),
        condition=str(first["condition"]),
        effect_pct=effect,
        verdicts=dict(verdicts),
        false=counted(sum(n for said, n in verdicts.items() if is_false(effect, said))),
        missed=counted(sum(n for said, n in verdicts.items() if is_missed(effect, margin, said)))
        if effect > margin + _EPSILON
        else None,
        inconclusive=counted(verdicts["inconclusive"]),
        held=Share(int(held.sum()), len(ended)),
        change_pct=float(group["change_pct"].median()),
        seconds=float(group["seconds"].median()),
    )

"""When a timing ends: criteria with names, asked after every round.

None of them asks whether the effect is significant: a run that stops as soon as it is would find
an effect where there is none. The interval's width does not depend on where its centre lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bench_prep.measure.records import Round
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT, decisive, effect_of, round_log_ratio
from bench_prep.settings import Method

#: Half of the margin: an effect of nothing is then told from one of twice the margin.
WIDTH_OF_MARGIN = 0.5

#: `interrupted` is what a run says when the user ended it.
StoppedBy = Literal["width", "budget", "rounds", "interrupted"]


@dataclass(frozen=True)
class Progress:
    """How far a timing is.

    Attributes:
        log_ratios: d of each round that counts, on the decisive clock (`verdict`).
        rounds: all that are finished.
        elapsed_s: seconds since the timing began.
        round_s: seconds that another round may take.
    """

    log_ratios: Sequence[float]
    rounds: int
    elapsed_s: float
    round_s: float


class Criterion(Protocol):
    """A reason to stop."""

    @property
    def name(self) -> StoppedBy:
        """What the result says."""

    def met(self, progress: Progress) -> bool:
        """Whether to stop after this round."""


@dataclass(frozen=True)
class TargetWidth:
    """The interval's half width is at most `half_width`, a fraction of the slower arm's time.

    Of the baseline's, where the candidate is the faster one: how much faster a candidate is that
    takes a fortieth of the time is known well enough after the fewest rounds.
    """

    half_width: float
    name: StoppedBy = "width"

    def met(self, progress: Progress) -> bool:
        if len(progress.log_ratios) < ROUNDS_FOR_VERDICT:
            return False
        effect = effect_of(progress.log_ratios)
        return effect.half_width <= self.half_width * max(1.0, effect.ratio)


@dataclass(frozen=True)
class TimeBudget:
    """Another round would not fit into `seconds`."""

    seconds: float
    name: StoppedBy = "budget"

    def met(self, progress: Progress) -> bool:
        return progress.elapsed_s + progress.round_s > self.seconds


@dataclass(frozen=True)
class FixedRounds:
    """`count` rounds are done."""

    count: int
    name: StoppedBy = "rounds"

    def met(self, progress: Progress) -> bool:
        return progress.rounds >= self.count


class Ending:
    """Follows the rounds of a timing until one of its method's criteria is met."""

    def __init__(self, method: Method) -> None:
        self._criteria = criteria(method)
        self._log_ratios: list[float] = []
        self._rounds = 0
        self._longest_s = 0.0

    def after(self, rounds: Iterable[Round], elapsed_s: float, last_s: float) -> StoppedBy | None:
        """Whether to stop after these further rounds, and why; None: go on.

        `elapsed_s` are the seconds since the timing began, `last_s` those of these rounds; there
        must be time for as many that take as long as the longest so far.
        """
        for one in rounds:
            self._rounds += 1
            if not one.left_out:
                self._log_ratios.append(round_log_ratio(one, decisive(one)))
        self._longest_s = max(self._longest_s, last_s)
        progress = Progress(self._log_ratios, self._rounds, elapsed_s, self._longest_s)
        return next((reason.name for reason in self._criteria if reason.met(progress)), None)


def criteria(method: Method) -> tuple[Criterion, ...]:
    """The method's reasons to stop, the first of which that is met is the one."""
    budget = TimeBudget(method.limit_s)
    if method.rounds is not None:
        return FixedRounds(method.rounds), budget
    return TargetWidth(WIDTH_OF_MARGIN * method.margin), budget

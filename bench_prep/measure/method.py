"""How a comparison is made: the numbers that a user can choose (docs/measuring.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Half of the margin: an effect of nothing is then told from one of twice the margin.
WIDTH_OF_MARGIN = 0.5
#: Blocks are cut shorter where so many rounds would not fit into the budget.
ROUNDS_IN_BUDGET = 30
#: Seconds after which a timing ends that was given neither a budget nor rounds.
BUDGET_S = 60.0
#: Timed seconds of a slice: what disturbs a machine comes and goes within tens of milliseconds.
SLICE_S = 0.010


@dataclass(frozen=True)
class Method:
    """What is timed, how long, and how small a difference counts as none.

    Attributes:
        warmup: untimed steps of each block, spread over its slices (at least one a slice).
        iters: timed steps of each block, at most: fewer where `ROUNDS_IN_BUDGET` rounds would
            not fit into the budget.
        margin: a difference up to this fraction of the baseline counts as none.
        budget_s: seconds after which the timing ends, whatever is known by then; None: `BUDGET_S`,
            or no limit where `rounds` is given.
        rounds: a fixed number of rounds, which no target width ends early, but a given budget does.
    """

    warmup: int = 100
    iters: int = 2000
    margin: float = 0.01
    budget_s: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.iters < 1:
            raise ValueError("a block has at least one timed step, and no negative warm-up")
        if not 0 < self.margin < 1:
            raise ValueError(f"a margin is a fraction between 0 and 1, not {self.margin}")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise ValueError(f"a budget is a number of seconds above zero, not {self.budget_s}")
        if self.rounds is not None and self.rounds < 1:
            raise ValueError("at least one round")

    @property
    def limit_s(self) -> float:
        """Seconds after which the timing ends: `budget_s` and what follows where it is None."""
        if self.budget_s is not None:
            return self.budget_s
        return BUDGET_S if self.rounds is None else math.inf

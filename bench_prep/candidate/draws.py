"""Which requests timed slices take, and at which of their steps the arms are compared.

Everything follows from one seed and from how many steps a slice has, which the machine's speed
decides. What is timed comes in sets of three slices, one of each arm, which take the same requests
and the same checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bench_prep.errors import OutputsDiffer

#: One of so many sets is checked; of the first ones more, so that a short run is checked, too.
_SETS = 16


@dataclass(frozen=True)
class Slice:
    """What is drawn for one slice.

    `seed` draws its requests; step `due[i]` of its i-th pass is checked. Without checks `due` is
    empty. With `look` the code is looked at before the slice.
    """

    seed: int
    due: tuple[int, ...]
    look: bool


class Draws:
    """The slices of one run, whose requests are at `position` and have these `block_sizes`."""

    def __init__(
        self, seed: int, position: int, block_sizes: tuple[int, ...], *, few: bool = False
    ) -> None:
        """With `few` of the first sets only the very first is always checked."""
        self._few = few
        self.seed = seed
        self._position = position
        self._block_sizes = block_sizes
        self._begun: Counter[str] = Counter()

    def slice(self, arm: str, steps: int, passes: int) -> Slice:
        """The next slice of an arm: `steps` steps, taken `passes` times, each on another request.

        The slices of a set come in the order of a round, and have the same steps.
        """
        number = self._begun[arm]
        self._begun[arm] += 1
        rng = np.random.default_rng([self.seed, number])
        seed = int(rng.integers(2**62))
        look = bool(np.random.default_rng([self.seed, number, 1]).integers(_SETS) == 0)
        if not self._is_checked(number):
            return Slice(seed, (), look)
        return Slice(seed, tuple(self._step(rng, steps) for _ in range(passes)), look)

    def _is_checked(self, number: int) -> bool:
        """One of the sets 0, 1, 2 to 3, 4 to 7, 8 to 15; then one in sixteen, each by itself.

        Who has seen one set checked knows nothing of those that follow.
        """
        if self._few and number == 0:
            return True
        if self._few or number >= _SETS:
            return bool(np.random.default_rng([self.seed, number, 0]).integers(_SETS) == 0)
        size = 1 << max(number.bit_length() - 1, 0)
        first = number // size * size
        return bool(
            number == first + np.random.default_rng([self.seed, first, size]).integers(size)
        )

    def _step(self, rng: np.random.Generator, steps: int) -> int:
        """The index of a step, of one at a block boundary in every second case."""
        at_boundary = [
            step
            for step in range(steps)
            if any((self._position + step) % size == 0 for size in self._block_sizes)
        ]
        if at_boundary and rng.integers(2):
            return int(rng.choice(at_boundary))
        return int(rng.integers(steps))


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Say of a difference how to see it again."""
    try:
        yield
    except OutputsDiffer as error:
        remedy = f"{error.remedy}; --seed {seed} draws the same again"
        raise OutputsDiffer(error.message, remedy) from error

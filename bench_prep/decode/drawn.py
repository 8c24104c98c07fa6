"""Steps of timed blocks that nobody knew beforehand: are the arms' states equal there, too?

What is timed comes in sets of three slices, one of each arm, which take the same requests: new
tokens in other blocks each time. In some sets one step of each pass is drawn, at a block boundary
as often as anywhere. The first slice, the baseline's, leaves a copy of its whole state there, and
the candidate's is compared with it. The next step is not timed and is prepared over poisoned
outputs; it is compared, too. All of it lies outside the clock, and so do the steps after it in
which the caches get warm again; the baseline's second slice does the same for nothing, so that
every arm is disturbed alike.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from bench_prep.decode.equality import copied, require_equal, state
from bench_prep.decode.poison import Poison
from bench_prep.decode.steps import Decoder, Workload
from bench_prep.errors import OutputsDiffer

#: Untimed steps after a check.
SETTLING = 16
#: One of so many sets is drawn; of the first ones more, so that a short run is checked, too.
_SETS = 16


class DrawnChecks:
    """The checks of one run; `baseline` and `candidate` are its two arms.

    Attributes:
        compared: how many whole states were compared so far.
    """

    def __init__(
        self,
        baseline: Decoder,
        candidate: Decoder,
        poison: Poison,
        workload: Workload,
        seed: int,
        look: Callable[[], None],
    ) -> None:
        """`seed` draws requests and steps; `look` is called at each of the candidate's checks."""
        self.compared = 0
        self._baseline, self._candidate = baseline, candidate
        self._poison = poison
        self._workload = workload
        self._seed = seed
        self._look = look
        self._begun: Counter[str] = Counter()
        self._set = 0
        self._arm = ""
        self._kept: list[dict[str, Any]] = []
        self._visits = 0

    def begin(self, arm: str, steps: int, passes: int) -> None:
        """Before a slice of `steps` steps, `passes` times, of the arm with this name.

        The slices of a set come in the order of a round.
        """
        self._set = self._begun[arm]
        self._begun[arm] += 1
        self._arm = arm
        self._visits = 0
        if arm == "baseline_before":
            self._kept = []
        rng = np.random.default_rng([self._seed, self._set])
        due = [self._draw(rng, steps) for _ in range(passes)] if self._is_drawn() else []
        decoder = self._candidate if arm == "candidate" else self._baseline
        decoder.reserve_tokens(steps + SETTLING + 2)
        decoder.begin(self._requests(), self, due)

    def at_step(self, decoder: Decoder) -> None:
        """Compare the step that has just been timed.

        Raises:
            OutputsDiffer: naming the position, the buffer, and what was expected and found.
        """
        self._compare(decoder, "in a timed block")

    def after_step(self, decoder: Decoder) -> None:
        """Compare one more step, over poisoned outputs, and let the caches get warm again.

        Raises:
            OutputsDiffer: as `at_step`.
        """
        decoder.before()
        self._poison.apply(decoder)
        decoder.call()
        read = self._poison.read(decoder)
        self._compare(decoder, "over poisoned outputs")
        self._require_on_stream(decoder, read)
        decoder.book()
        if decoder is self._candidate:
            self._look()
        for _ in range(SETTLING):
            decoder.prepare_step()
            decoder.book()

    def _compare(self, decoder: Decoder, when: str) -> None:
        # What requests before this one have left is the same, too, but for the second slice of
        # the baseline, which comes after its first one.
        found = copied(state(decoder, decoder.result))
        if decoder is self._baseline:
            if self._arm == "baseline_before":
                self._kept.append(found)
            return
        place = f"at position {decoder.position} {when} (seed {self._seed})"
        require_equal(self._kept[self._visits], found, place)
        self._visits += 1
        self.compared += 1

    def _require_on_stream(self, decoder: Decoder, read: dict[str, torch.Tensor]) -> None:
        if decoder.runner.device.type == "cpu":
            return
        torch.cuda.synchronize(decoder.runner.device)
        now = self._poison.read(decoder)
        late = [path for path, values in read.items() if not torch.equal(values, now[path])]
        if late:
            raise OutputsDiffer(
                f"outputs differ at position {decoder.position}: {late[0]} is not yet written when "
                f"the forward pass's stream reads it (seed {self._seed})",
                "let the current stream wait for the work on other streams; no timing is reported",
            )

    def _is_drawn(self) -> bool:
        """One of the sets 0, 1, 2 to 3, 4 to 7, 8 to 15, and of each sixteen that follow."""
        size = min(_SETS, 1 << max(self._set.bit_length() - 1, 0))
        first = self._set // size * size
        # Every set of a group draws the same member.
        member = np.random.default_rng([self._seed, first, size]).integers(size)
        return bool(self._set == first + member)

    def _draw(self, rng: np.random.Generator, steps: int) -> int:
        """The index of a step, of one at a block boundary in every second case."""
        at_boundary = [
            step
            for step in range(steps)
            if self._workload.boundaries(self._workload.position + step)
        ]
        if at_boundary and rng.integers(2):
            return int(rng.choice(at_boundary))
        return int(rng.integers(steps))

    def _requests(self) -> Iterator[Workload]:
        for lap in itertools.count():
            rng = np.random.default_rng([self._seed, self._set, lap])
            yield self._workload.renewed(int(rng.integers(2**62)))

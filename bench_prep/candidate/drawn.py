"""Steps of timed slices that nobody knew beforehand: are the arms' states equal there, too?

At a step that is drawn (`draws`), the first slice of a set, the baseline's, leaves a copy of its
whole state, and the candidate's is compared with it. The next step is not timed and is prepared
over poisoned outputs; it is compared, too. All of it lies outside the clock, and so do the steps
after it in which the caches get warm again; the baseline's second slice does the same for nothing,
so that every arm is disturbed alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench_prep.candidate.draws import Draws
from bench_prep.candidate.fold import EveryStep
from bench_prep.candidate.poison import Poison
from bench_prep.decode.equality import copied, require_equal, state
from bench_prep.decode.steps import Decoder, Workload
from bench_prep.errors import OutputsDiffer
from bench_prep.measure.records import Arm

#: Untimed steps after a check.
SETTLING = 16


def settle(decoder: Decoder) -> None:
    """Take steps that are not timed, in which the caches get warm again after a check."""
    for _ in range(SETTLING):
        decoder.prepare_step()
        decoder.book()


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
        every: EveryStep,
        workload: Workload,
        draws: Draws,
        look: Callable[[], None],
    ) -> None:
        """`draws` has requests and steps; `look` looks at the code that both arms run.

        It is called at each of the candidate's checks, and before slices of every arm: what the
        candidate changes for the baseline's slices alone is seen there.
        """
        self.compared = 0
        self._baseline, self._candidate = baseline, candidate
        self._poison = poison
        self._every = every
        self._workload = workload
        self._draws = draws
        self._look = look
        self._arm: Arm = "baseline_before"
        self._kept: list[dict[str, Any]] = []
        self._visits = 0

    def begin(self, arm: Arm, steps: int, passes: int) -> None:
        """Before the next slice of the arm with this name (`Draws.slice`)."""
        drawn = self._draws.slice(arm, steps, passes)
        self._arm = arm
        self._visits = 0
        if arm == "baseline_before":
            self._kept = []
        decoder = self._candidate if arm == "candidate" else self._baseline
        decoder.reserve_tokens(steps + SETTLING + 2)
        if drawn.look:
            self._look()
        self._every.of(arm).begin(drawn.seed, steps * passes)
        decoder.begin(self._workload.requests(drawn.seed), self, drawn.due)

    def at_each(self, decoder: Decoder) -> None:
        """Fold the step that has just been taken."""
        self._every.of(self._arm).add()

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
        decoder.result = decoder.call()
        read = self._poison.read(decoder)
        self._compare(decoder, "over poisoned outputs")
        self._require_on_stream(decoder, read)
        decoder.book()
        if decoder is self._candidate:
            self._look()
        settle(decoder)

    def _compare(self, decoder: Decoder, when: str) -> None:
        # What requests before this one have left is the same, too, but for the second slice of
        # the baseline, which comes after its first one.
        found = copied(state(decoder, decoder.result))
        if decoder is self._baseline:
            if self._arm == "baseline_before":
                self._kept.append(found)
            return
        expected = self._kept[self._visits]
        require_equal(expected, found, f"at position {decoder.position} {when}")
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
                f"the forward pass's stream reads it",
                "let the current stream wait for the work on other streams; no timing is reported",
            )

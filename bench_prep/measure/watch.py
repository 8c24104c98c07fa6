"""What happened in each round beside the timed steps, and whether the round counts.

It is asked between rounds and reads nothing while one is timed. A round is left out because the
device was throttled or a timed step was disturbed, never because of its time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from bench_prep.measure.disturbances import Disturbances
from bench_prep.measure.records import Arm
from bench_prep.measure.state import MachineState, Span


class Watch:
    """Follows the rounds of a run.

    `read` gives the machine's state at the end of each round, which is the beginning of the next
    one; without it only disturbances are followed.

    Attributes:
        span: the machine before and after the last round; None without `read`.
    """

    def __init__(self, read: Callable[[], MachineState] | None = None) -> None:
        self._read = read
        self._last = None if read is None else read()
        self._disturbances: dict[Arm, Disturbances] = defaultdict(Disturbances)
        self.span: Span | None = None

    def disturbances(self, arm: Arm) -> Disturbances:
        """Those of this round's timed steps of an arm; whoever times adds to them."""
        return self._disturbances[arm]

    def left_out(self) -> str:
        """End the round; why it does not count, empty where it does."""
        if self._read is not None and self._last is not None:
            self.span = Span(self._last, self._read())
            self._last = self.span.after
        reasons = [
            *(
                f"the device was throttled ({reason})"
                for reason in (() if self.span is None else self.span.throttled)
            ),
            *(
                f"{text} in {arm}"
                for arm, disturbances in self._disturbances.items()
                for text in disturbances.texts()
            ),
        ]
        self._disturbances.clear()
        return "; ".join(reasons)

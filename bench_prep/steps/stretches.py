"""Stretches of steps: vLLM's own preparation and the fast path, recorded and not recorded.

They take `execute_model`'s place on the runner. A step lasts from its start to the next one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

from bench_prep.fastpath.preparer import FastPath
from bench_prep.steps.parts import FAST, OWN
from bench_prep.steps.recorder import Switch

#: Instead of a stretch's number: a decode step that does not count, and any other step.
UNCOUNTED, NO_DECODE = -1, -2
#: Decode steps after a prompt that do not count.
AFTER_PROMPT = 3


@dataclass(frozen=True)
class Stretch:
    """`arm` is `OWN` or `FAST`; `recorded`: with the probes."""

    arm: str
    recorded: bool
    round: int


def plan(number: int, *, fast: bool) -> list[Stretch]:
    """The stretches of round `number`.

    The first and the last, which are not recorded, and the two of the fast path are as far from
    the middle as those that are recorded: a linear drift cancels in every comparison, the change
    of the fast path's order by rounds included.
    """
    own = [Stretch(OWN, recorded, number) for recorded in (False, True)]
    middle = [Stretch(FAST, recorded, number) for recorded in (True, False)] if fast else []
    return [*own, *(middle[::-1] if number % 2 else middle), *own[::-1]]


class Switchable(Protocol):
    """What `Probes` can do."""

    def execute(self, own: Any) -> Any: ...

    def attach(self) -> None: ...

    def detach(self) -> None: ...


class StepStretches:
    """Takes the place of the runner's `execute_model` until `close`.

    Attributes:
        steps: of each step its start in `perf_counter_ns` and its stretch's index, or
            `UNCOUNTED` or `NO_DECODE`. Of the fast path only those steps count that it took.
    """

    def __init__(
        self,
        runner: Any,
        path: FastPath | None,
        probes: Switchable,
        switch: Switch,
        stretches: Sequence[Stretch],
        warmup: int,
        iters: int,
    ) -> None:
        self._runner, self._path = runner, path
        self._probes, self._switch = probes, switch
        self._own = runner.execute_model
        self._execute, self._recorded = self._own, probes.execute(self._own)
        self._stretches, self._warmup, self._iters = stretches, warmup, iters
        self._index, self._skip, self._left = -1, 0, 0
        self._own_path = path.own_path if path else None
        self.steps: list[tuple[int, int]] = []
        self._fast = False
        runner.execute_model = self

    def __call__(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        start = perf_counter_ns()
        if scheduler_output.total_num_scheduled_tokens != 1 or scheduler_output.scheduled_new_reqs:
            self._skip = max(self._skip, AFTER_PROMPT)
            self.steps.append((start, NO_DECODE))
            return self._execute(scheduler_output, intermediate_tensors)
        if self._left == 0:
            self._next()
        path = self._path if self._fast else None
        dispatched = path.dispatched if path else -1
        result = self._execute(scheduler_output, intermediate_tensors)
        counted = path is None or path.dispatched > dispatched
        if self._skip:
            self._skip -= 1
        elif counted and self._index < len(self._stretches):
            self._left -= 1
            self.steps.append((start, self._index))
            return result
        self.steps.append((start, UNCOUNTED))
        return result

    def _next(self) -> None:
        self._probes.detach()
        self._index += 1
        if self._index >= len(self._stretches):
            self._switch.turn(False)
            self._execute = self._own
            return
        stretch = self._stretches[self._index]
        self._skip, self._left = self._warmup, self._iters
        self._fast = stretch.arm == FAST
        if self._path is not None:
            if self._fast:
                self._path.track()
                self._runner._prepare_inputs = self._path
            else:
                self._path.detach()
                self._runner._prepare_inputs = self._own_path
        if stretch.recorded:
            self._probes.attach()
        self._execute = self._recorded if stretch.recorded else self._own
        self._switch.turn(stretch.recorded)

    @property
    def filled(self) -> bool:
        """Whether every stretch has its steps, and a step behind the last one."""
        return self._index >= len(self._stretches)

    def close(self) -> None:
        """The runner as it was; the fast path takes all steps again."""
        self._probes.detach()
        self._switch.turn(False)
        del self._runner.execute_model
        if self._path is not None:
            self._path.track()
            self._runner._prepare_inputs = self._path

"""Prepares each step before it is called, where the clock does not see it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.candidate.tricks.outputs import outputs

Prepare = Callable[[Any, Any], Any]


def replaced_method(runner: Any) -> Prepare:
    """In `_update_states`, which has all that a preparation needs."""
    own_path, update = runner._prepare_inputs, runner._update_states
    result: Any = None

    def update_states(output: Any) -> Any:
        nonlocal result
        updated = update(output)
        result = own_path(output, np.ones(1, dtype=np.int32))
        return updated

    runner._update_states = update_states
    return lambda output, scheduled: result


def replaced_class(runner: Any) -> Prepare:
    """The same, in a class of the runner's own."""
    own_path = runner._prepare_inputs
    result: Any = None

    class Runner(type(runner)):  # type: ignore[misc]
        def _update_states(self, output: Any) -> Any:
            nonlocal result
            updated = super()._update_states(output)
            result = own_path(output, np.ones(1, dtype=np.int32))
            return updated

    runner.__class__ = Runner
    return lambda output, scheduled: result


def finalizer(runner: Any) -> Prepare:
    """When the previous step's scheduler output goes away: nothing is replaced."""
    return _at_the_end_of_the_output(runner, keeps=False)


def keeping_finalizer(runner: Any) -> Prepare:
    """The same, and the outputs are written once more in the call."""
    return _at_the_end_of_the_output(runner, keeps=True)


def _at_the_end_of_the_output(runner: Any, keeps: bool) -> Prepare:
    own_path = runner._prepare_inputs
    result: Any = None
    kept: list[Any] = []

    def early(output: Any, scheduled: Any) -> None:
        nonlocal result
        result = own_path(output, scheduled)
        kept[:] = [tensor.item() for tensor in outputs(runner)]

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal result
        if output.scheduled_new_reqs or result is None:
            result = own_path(output, scheduled)
        elif keeps:
            for tensor, value in zip(outputs(runner), kept, strict=True):
                tensor[0] = value
        weakref.finalize(output, early, copy.copy(output), scheduled)
        return result

    return prepare

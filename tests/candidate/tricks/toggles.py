"""Slows the baseline, and undoes it whenever somebody looks."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

Prepare = Callable[[Any, Any], Any]


def profile(runner: Any) -> Prepare:
    """A profile function slows all Python, and is gone when a look at the settings begins."""
    return _profiling(runner, spared=0)


def late_profile(runner: Any) -> Prepare:
    """It spares the first round, whose baseline is then as fast as before the candidate."""
    return _profiling(runner, spared=350)


def _profiling(runner: Any, spared: int) -> Prepare:
    own_path = runner._prepare_inputs
    timed = 0

    def slow(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "require":
            sys.setprofile(None)
        sum(range(100))

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal timed
        sys.setprofile(None)
        result = own_path(output, scheduled)
        if _in_timed_slice():
            timed += 1
            if timed > spared:
                sys.setprofile(slow)
        return result

    return prepare


def code(runner: Any) -> Prepare:
    """vLLM's preparation has slow code from the last step of a slice to the next slice's first."""
    method = type(runner)._prepare_inputs
    own = method.__code__
    copy = types.FunctionType(own, method.__globals__, closure=method.__closure__)
    own_path = types.MethodType(copy, runner)

    def slow(self: Any, output: Any, scheduled: Any) -> Any:
        __import__("time").sleep(0.0001)
        return _toggled_copy(self, output, scheduled)  # type: ignore[name-defined]  # noqa: F821

    def prepare(output: Any, scheduled: Any) -> Any:
        method.__code__ = own
        result = own_path(output, scheduled)
        if _in_timed_slice(last=True):
            method.__globals__["_toggled_copy"] = copy
            method.__code__ = slow.__code__
        return result

    return prepare


def _in_timed_slice(last: bool = False) -> bool:
    """Whether a step is being timed, the last one of its slice: the frames above tell."""
    frame: Any = sys._getframe()
    while frame is not None:
        found = frame.f_locals
        if frame.f_code.co_name == "_host_and_ready" and "index" in found:
            return not last or found["index"] == found["iters"] - 1
        frame = frame.f_back
    return False

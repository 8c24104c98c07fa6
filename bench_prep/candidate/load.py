"""The preparation under test: found, attached to its runner, and its errors told from ours.

`examples/same_path.py` describes the protocol.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_prep.candidate.findable import cannot_be_loaded
from bench_prep.decode.steps import RAISED_BY, Decoder
from bench_prep.errors import BenchPrepError, Missing, UsageError
from bench_prep.settings import OUR_CANDIDATE


def load_factory(name: str) -> Callable[[Any], Any]:
    """The candidate's factory: `module:attribute` or `file.py:attribute`."""
    where, _, attribute = name.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location("bench_prep_candidate", where)
            if spec is None or spec.loader is None:
                raise ImportError(f"{where} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        factory = getattr(module, attribute)
        if not callable(factory):
            raise TypeError(f"{attribute} cannot be called")
    except Exception as error:
        raise cannot_be_loaded(name, error) from error
    return factory  # type: ignore[no-any-return]


def attach(name: str, factory: Callable[[Any], Any], runner: Any) -> Callable[[Any, Any], Any]:
    """The preparation that the candidate's factory makes for `runner`."""
    try:
        prepare = factory(runner)
    except BenchPrepError:
        raise
    except Exception as error:
        if name == OUR_CANDIDATE:
            raise
        raise _raised(name, error) from error
    if not callable(prepare):
        raise UsageError(
            f"--candidate {name} returned {type(prepare).__name__}, which cannot be called",
            "return a function of (scheduler_output, num_scheduled_tokens)",
        )
    return prepare  # type: ignore[no-any-return]


@contextmanager
def own_errors(name: str, decoder: Decoder) -> Iterator[None]:
    """What a foreign preparation raises while `decoder` calls it is its author's to mend."""
    try:
        yield
    except BenchPrepError:
        raise
    except Exception as error:
        if name == OUR_CANDIDATE or vars(error).get(RAISED_BY) is not decoder:
            raise
        raise _raised(name, error) from error


def _raised(name: str, error: Exception) -> UsageError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return UsageError(
        f"--candidate {name} raised {type(error).__name__}: {error} "
        f"({Path(last.filename).name}, line {last.lineno})",
        "mend the candidate; bench-prep --debug run ... shows the whole traceback",
    )


def require_dispatched(candidate: Any) -> None:
    """A candidate that counts must have prepared something itself."""
    if getattr(candidate, "dispatched", None) == 0:
        reasons = Counter(getattr(candidate, "fallbacks", {})).most_common(1)
        main_reason = reasons[0][0] if reasons else "none given"
        raise Missing(
            f"the candidate left every step to vLLM's own path (main reason: {main_reason})",
            "there is nothing to time; choose settings that the candidate serves",
        )


class DispatchedShare:
    """Share of the candidate's steps that it prepared itself, where it counts them."""

    def __init__(self, candidate: Any) -> None:
        self._candidate = candidate
        self._mark: int | None = None
        self._dispatched = self._steps = 0

    def mark(self) -> None:
        self._mark = getattr(self._candidate, "dispatched", None)

    def add(self, steps: int) -> None:
        if self._mark is not None:
            self._dispatched += self._candidate.dispatched - self._mark
            self._steps += steps

    def percent(self) -> float | None:
        return 100 * self._dispatched / self._steps if self._steps else None

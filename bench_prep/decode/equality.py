"""Twins: do two preparations leave the same state, step by step, across block boundaries?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench_prep.decode.steps import Decoder, Workload
from bench_prep.errors import OutputsDiffer
from bench_prep.snapshot import (
    Difference,
    Places,
    addresses,
    difference_between,
    leaves,
    moved,
    shared_memory,
)


@dataclass(frozen=True)
class EqualityProof:
    """How far the twins were compared: `steps` whole states, `boundaries` new blocks."""

    steps: int
    boundaries: int


def prove_equal(baseline: Decoder, candidate: Decoder, workloads: list[Workload]) -> EqualityProof:
    """Take the same steps with both decoders and compare the whole state after each one.

    `workloads[i]` is the request of the i-th stretch; its `last_position` ends the stretch.

    Raises:
        OutputsDiffer: naming the step, the buffer, the index, and what was expected and found.
    """
    steps = boundaries = 0
    for work in workloads:
        for decoder in (baseline, candidate):
            decoder.workload = work
            decoder.reserve_tokens(work.last_position - work.position + 2)
            decoder.restart()
        places = addresses(baseline.runner), addresses(candidate.runner)
        for position in range(work.position, work.last_position + 1):
            # Where the forward pass would read it, and where the next step finds it.
            # The candidate goes first: of this step the baseline's answers are not there yet.
            found = candidate.prepare_step()
            results = baseline.prepare_step(), found
            compare(baseline, candidate, f"at position {position}", results, places)
            for decoder in (baseline, candidate):
                decoder.after()
            compare(baseline, candidate, f"after position {position}", results, places)
            steps += 1
            boundaries += work.boundaries(position)
    require_apart(baseline, candidate)
    return EqualityProof(steps, boundaries)


def compare(
    baseline: Decoder,
    candidate: Decoder,
    when: str,
    results: tuple[Any, Any] = (None, None),
    places: tuple[Places, Places] = ({}, {}),
) -> None:
    """Compare two runners' whole state, what their preparations were given and what they returned.

    `places` are the `addresses` of both from before: a buffer must not move in one alone.

    Raises:
        OutputsDiffer: at the first element that differs.
    """
    require_equal(state(baseline, results[0]), state(candidate, results[1]), when)
    difference = _first_moved(places, baseline.runner, candidate.runner)
    if difference is not None:
        raise _differ(when, difference)


def require_apart(baseline: Decoder, candidate: Decoder) -> None:
    """No buffer of the candidate's arm, nor anything that it returned, is in the baseline's memory.

    Raises:
        OutputsDiffer: naming the first that is.
    """
    arms = ((arm.runner, arm.arguments, arm.result) for arm in (baseline, candidate))
    shared = shared_memory(*arms)
    if shared is not None:
        path = re.sub(r"^\[(\d)\]\.?", lambda m: _ROOTS[int(m[1])], shared[1])
        raise OutputsDiffer(
            f"outputs differ: {path} is in the baseline's memory",
            "keep to the candidate's own runner; no timing is reported",
        )


_ROOTS = "", "argument", "returned value"


def state(decoder: Decoder, result: Any = None, *, every_path: bool = False) -> dict[str, Any]:
    """What later code can read, by its path, when the stream of the forward pass has come there.

    The runner's whole state, what its preparation was given and the `result` that it returned.
    Memory that several paths reach is under the first one, or with `every_path` under each.
    """
    decoder.synchronize()
    roots = (("returned value", result), ("argument", decoder.arguments), ("", decoder.runner))
    return {
        f"{name}{path}": value
        for name, root in roots
        for path, value in leaves(root, every_path=every_path)
    }


def copied(values: dict[str, Any]) -> dict[str, Any]:
    """A state that stays as it is, on the host: the device's allocator is left alone."""
    return {path: _copied(value) for path, value in values.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone() if value.device.type == "cpu" else value.cpu()
    return value.copy() if isinstance(value, np.ndarray) else value


def require_equal(expected: dict[str, Any], found: dict[str, Any], when: str) -> None:
    """Compare two states.

    Raises:
        OutputsDiffer: at the first element that differs.
    """
    difference = difference_between(expected, found)
    if difference is not None:
        raise _differ(when, difference)


def _differ(when: str, difference: Difference) -> OutputsDiffer:
    return OutputsDiffer(
        f"outputs differ {when}: {difference}", "correct the candidate; no timing is reported"
    )


def _first_moved(places: tuple[Places, Places], baseline: Any, candidate: Any) -> Difference | None:
    expected, found = moved(places[0], baseline), moved(places[1], candidate)
    for path in sorted(expected ^ found):
        same, other = "the same memory", "other memory"
        return Difference(path, None, *((other, same) if path in expected else (same, other)))
    return None

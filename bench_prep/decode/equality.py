"""Twins: do two preparations leave the same state, step by step, across block boundaries?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bench_prep.decode.steps import Decoder, Workload
from bench_prep.errors import OutputsDiffer
from bench_prep.snapshot import Difference, Places, addresses, first_difference, moved


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
            results = baseline.prepare_step(), candidate.prepare_step()
            compare(baseline, candidate, f"at position {position}", results, places)
            for decoder in (baseline, candidate):
                decoder.after()
            compare(baseline, candidate, f"after position {position}", results, places)
            steps += 1
            boundaries += work.boundaries(position)
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
    for decoder in (baseline, candidate):
        decoder.synchronize()
    difference = (
        _first_difference("returned value", *results)
        or _first_difference("argument", baseline.arguments, candidate.arguments)
        or first_difference(baseline.runner, candidate.runner)
        or _first_moved(places, baseline.runner, candidate.runner)
    )
    if difference is not None:
        raise OutputsDiffer(
            f"outputs differ {when}: {difference}", "correct the candidate; no timing is reported"
        )


def _first_difference(name: str, expected: Any, found: Any) -> Difference | None:
    difference = first_difference(expected, found)
    return difference and replace(difference, buffer=f"{name}{difference.buffer}")


def _first_moved(places: tuple[Places, Places], baseline: Any, candidate: Any) -> Difference | None:
    expected, found = moved(places[0], baseline), moved(places[1], candidate)
    for path in sorted(expected ^ found):
        same, other = "the same memory", "other memory"
        return Difference(path, None, *((other, same) if path in expected else (same, other)))
    return None

"""Twins: do two preparations leave the same state, step by step, across block boundaries?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bench_prep.decode.snapshot import Difference, first_difference
from bench_prep.decode.steps import Decoder, Workload
from bench_prep.errors import OutputsDiffer

#: Block boundaries that each KV group crosses, where the model's length has so many.
BOUNDARIES_PER_GROUP = 3
#: Longest stretch of steps that is walked without a gap, in steps.
_LONGEST_WALK = 256
#: Steps before and after a boundary when only its surroundings are walked.
_MARGIN = 4


@dataclass(frozen=True)
class EqualityProof:
    """How far the twins were compared: `steps` whole states, `boundaries` new blocks."""

    steps: int
    boundaries: int


def stretches(position: int, last: int, block_sizes: tuple[int, ...]) -> list[range]:
    """The positions at which the twins are compared, as stretches without gaps.

    They begin at `position` and contain three boundaries of every block size: the next ones, or
    the previous ones where the model ends before. Far-away boundaries are visited with the steps
    around them.
    """
    wanted = {position}
    for size in block_sizes:
        after = range(-(-(position + 1) // size) * size, last + 1, size)[:BOUNDARIES_PER_GROUP]
        missing = BOUNDARIES_PER_GROUP - len(after)
        before = range(position // size * size, 0, -size)[:missing]
        wanted.update(after, before)
    if max(wanted) - min(wanted) < _LONGEST_WALK:
        return [range(max(min(wanted), 1), min(max(wanted) + _MARGIN, last) + 1)]
    merged: list[range] = []
    for point in sorted(wanted):
        start, stop = max(point - _MARGIN, 1), min(point + _MARGIN, last) + 1
        if merged and start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(range(start, stop))
    return merged


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
        for position in range(work.position, work.last_position + 1):
            expected, found = baseline.step(), candidate.step()
            compare(baseline, candidate, expected, found, f"at position {position}")
            steps += 1
            boundaries += work.boundaries(position)
    return EqualityProof(steps, boundaries)


def compare(
    baseline: Decoder, candidate: Decoder, expected: Any = None, found: Any = None, when: str = ""
) -> None:
    """Compare two runners' whole state, and what their preparations returned.

    Raises:
        OutputsDiffer: at the first element that differs.
    """
    for decoder in (baseline, candidate):
        decoder.synchronize()
    difference = first_difference(expected, found)
    if difference is not None:
        difference = replace(difference, buffer=f"returned value{difference.buffer}")
    else:
        difference = first_difference(baseline.runner, candidate.runner)
    if difference is not None:
        raise OutputsDiffer(
            describe(difference, when), "correct the candidate; no timing is reported"
        )


def describe(difference: Difference, when: str) -> str:
    """One line: where, when, expected, found."""
    return f"outputs differ {when}: {difference}"

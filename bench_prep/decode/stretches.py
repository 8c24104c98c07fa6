"""At which positions the twins are compared: across three boundaries of every KV group."""

from __future__ import annotations

#: Block boundaries that each KV group crosses, where the model's length has so many.
BOUNDARIES_PER_GROUP = 3
#: Longest stretch of steps that is walked without a gap, in steps.
_LONGEST_WALK = 256
#: Steps before and after a boundary when only its surroundings are walked.
_MARGIN = 4


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

"""The axes of a sweep: which settings its points have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench_prep.errors import UsageError
from bench_prep.settings import RunSettings

#: Tokens behind the last position of the position axis: for the timed steps.
ROOM = 1024
#: Points of an axis, at least: fewer show no growth; at most, with the most exponents of an axis.
LEAST_POINTS, MOST_POINTS = 2, 11

Change = Callable[[RunSettings, int], dict[str, Any]]


@dataclass(frozen=True)
class Axis:
    """One setting from 2**first to 2**last, all others as the reference has them.

    `change` gives the settings that differ from the reference at a value. `grows`: the
    candidate's own work is expected to grow along it.
    """

    name: str
    label: str
    first: int
    last: int
    change: Change
    grows: bool = False

    def values(self, points: int) -> list[int]:
        """At most so many powers of two, evenly spread from the first to the last."""
        exponents = np.linspace(self.first, self.last, points).round().astype(int)
        return [2 ** int(exponent) for exponent in dict.fromkeys(exponents)]


def _position(_: RunSettings, value: int) -> dict[str, Any]:
    # One model length for all points: a runner's tables are as wide as its longest request.
    return {"position": value, "max_model_len": 2**18 + ROOM}


def _groups(reference: RunSettings, value: int) -> dict[str, Any]:
    return {"block_sizes": (reference.block_sizes[0],) * value}


def _block_size(reference: RunSettings, value: int) -> dict[str, Any]:
    return {"block_sizes": (value,) * len(reference.block_sizes)}


AXES = {
    axis.name: axis
    for axis in (
        Axis("position", "position, tokens", 10, 18, _position),
        Axis("max_num_reqs", "max_num_reqs, requests", 0, 10, lambda _, n: {"max_num_reqs": n}),
        Axis("max_num_tokens", "max_num_tokens, tokens", 9, 15, lambda _, n: {"max_num_tokens": n}),
        Axis("groups", "KV groups", 0, 4, _groups, grows=True),
        Axis("block_size", "block size, tokens", 4, 10, _block_size),
    )
}


@dataclass(frozen=True)
class Point:
    """One value of one axis, and all settings there."""

    axis: str
    value: int
    settings: RunSettings

    def __str__(self) -> str:
        return f"{self.axis} {self.value}"

    @property
    def shape(self) -> RunSettings:
        """What a runner is made for: all but the position."""
        return self.settings.model_copy(update={"position": 1})


def points_of(axes: Iterable[str], points: int, reference: RunSettings) -> list[Point]:
    """The points of these axes, axis by axis, in the order of their values."""
    return [
        Point(
            name, value, RunSettings(**reference.model_dump() | AXES[name].change(reference, value))
        )
        for name in axes
        for value in AXES[name].values(points)
    ]


def names_of(text: str | None) -> tuple[str, ...]:
    """The axes that are named with commas, each once; None: all of them.

    Raises:
        UsageError: an axis that is none.
    """
    if text is None:
        return tuple(AXES)
    names = [part.strip().replace("-", "_") for part in text.split(",")]
    for name in names:
        if name not in AXES:
            raise UsageError(f"--axes: there is no axis '{name}'", f"axes: {','.join(AXES)}")
    return tuple(dict.fromkeys(names))

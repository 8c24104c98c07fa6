"""Rounds and result tables with known medians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from bench_prep.measure.records import ARMS, Block, Clock, Round
from bench_prep.results.rows import Measured, rows
from bench_prep.settings import RunSettings
from tests.results.frames import frame_of

PUBLISHED_NS = (259_076, 101_048, 258_436)


def round_of(
    medians_ns: tuple[int, int, int] = PUBLISHED_NS, clocks: tuple[Clock, ...] = ("host", "ready")
) -> Round:
    """A round of 101 steps a block, spread by 10 ns a step around each median.

    Each further clock is 1000 ns slower than the one before it.
    """

    def block(index: int) -> Block:
        samples = {
            clock: [medians_ns[index] + 1000 * number + 10 * step for step in range(-50, 51)]
            for number, clock in enumerate(clocks)
        }
        return Block(arm=ARMS[index], samples=samples)

    return Round(blocks=(block(0), block(1), block(2)))


@pytest.fixture
def make_round() -> Callable[..., Round]:
    """`round_of`, for the tests."""
    return round_of


@pytest.fixture
def make_frame() -> Callable[..., pd.DataFrame]:
    """A function that makes the rows of a run."""

    def make(
        run: str = "run-1",
        rounds: list[Round] | None = None,
        equal: bool = True,
        partial: bool = False,
        environment: dict[str, Any] | None = None,
        started: str = "2025-01-01T00:00:00Z",
        **settings: Any,
    ) -> pd.DataFrame:
        if environment is None:
            environment = {"compared": True, "device_name": "test device"}
        measured = Measured(
            RunSettings(**settings),
            rounds or [round_of()],
            environment,
            run,
            started,
            equal=equal,
            partial=partial,
        )
        return frame_of(rows(measured))

    return make

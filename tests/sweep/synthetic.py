"""Rounds of known truth, as a timing process would send them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from bench_prep.measure.records import ARMS, Arm, Block, Clock, Round, Samples
from bench_prep.settings import RunSettings
from bench_prep.sweep.axes import AXES, Point, points_of
from bench_prep.sweep.store import rows

REFERENCE = RunSettings()
MARGIN = 0.1
#: ns of a step of either arm at a point.
Cost = Callable[[Point, str], float]


def cost(point: Point, arm: str) -> float:
    """The baseline and the candidate both grow with the groups and with nothing else."""
    groups = len(point.settings.block_sizes)
    return 2000.0 + 200 * groups if arm == "candidate" else 100_000.0 + 20_000 * groups


def one_round(point: Point, of: Cost, rng: np.random.Generator, *, device: bool = False) -> Round:
    level = float(rng.normal(1, 0.01))  # of the machine, in this round

    def block(arm: Arm) -> Block:
        host = (level * of(point, arm) * rng.normal(1, 0.01, 20)).round().astype(int).tolist()
        samples: Samples = {"host": host, "ready": host}
        if device:
            samples |= {
                "ready": [ns + 7000 for ns in host],
                "device": [3000 + n for n in range(20)],
            }
        return Block(arm, samples)

    before, candidate, after = map(block, ARMS)
    return Round((before, candidate, after))


def frame_of(
    axes: Iterable[str] = tuple(AXES),
    of: Cost = cost,
    *,
    points: int = 3,
    laps: int = 16,
    device: bool = False,
    left_out: dict[Point, str] | None = None,
) -> pd.DataFrame:
    """The rows of a sweep over these axes."""
    rng = np.random.default_rng(7)
    left_out = left_out or {}
    rounds = {
        point: [one_round(point, of, rng, device=device) for _ in range(laps)]
        for point in points_of(axes, points, REFERENCE)
        if point not in left_out
    }
    common = {
        "run": "r1",
        "started": "2026-01-02T03:04:05+00:00",
        "budget_s": 150.0,
        "points": points,
        "stopped_by": "width",
        "vllm_version": "0.32.0",
        "torch_version": "2.13.0",
        "device_name": "a processor",
        "fastpath_sha256": "0123456789abcdef",
        "command": "bench-prep sweep",
        "seed": 3,
    }
    clock_cost: dict[Clock, int] = {"host": 80, "ready": 80}
    of_point = {point: {"equality_steps": 3} for point in rounds}
    return rows(rounds, left_out, MARGIN, common, of_point, clock_cost)

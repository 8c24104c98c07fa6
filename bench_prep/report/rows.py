"""A run's rounds as rows of the result table: one row per clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bench_prep.measure.records import ARMS, CLOCKS, Clock, Round
from bench_prep.measure.statistics import (
    BlockSummary,
    Figures,
    compare,
    median_figure,
    over_rounds,
    share_of_step,
    summarize,
    verdict,
)
from bench_prep.report.schema import VERSION, environment_record, frame_of
from bench_prep.settings import RunSettings

#: Decimals of every number in the table: 1e-9 ms is a millionth of what the clocks resolve.
DECIMALS = 9


def figure_cells(figures: Figures, tpot_ms: float | None) -> dict[str, Any]:
    """The result columns that follow from the figures; times in ms, `_pct` columns in percent."""

    def cell(value: float | None, factor: float = 1.0) -> float | None:
        return None if value is None else round(value * factor, DECIMALS)

    cells = {
        "baseline_before_ms": cell(figures.baseline_before_ms.median),
        "candidate_ms": cell(figures.candidate_ms.median),
        "baseline_after_ms": cell(figures.baseline_after_ms.median),
        "baseline_ms": cell(figures.baseline_ms.median),
        "drift_pct": cell(figures.drift.median, 100),
        "speedup": cell(figures.speedup.median),
        "speedup_low": cell(figures.speedup.low),
        "speedup_high": cell(figures.speedup.high),
        "saved_ms": cell(figures.saved_ms.median),
        "saved_low_ms": cell(figures.saved_ms.low),
        "saved_high_ms": cell(figures.saved_ms.high),
        "reduction_pct": cell(figures.reduction.median, 100),
        "reduction_low_pct": cell(figures.reduction.low, 100),
        "reduction_high_pct": cell(figures.reduction.high, 100),
    }
    if tpot_ms is not None:
        cells["share_of_tpot_pct"] = cell(share_of_step(figures.saved_ms.median, tpot_ms), 100)
    return cells


def _clocks(rounds: Sequence[Round]) -> list[Clock]:
    present = [set(block.samples) for one in rounds for block in one.blocks]
    if any(clocks != present[0] for clocks in present):
        raise ValueError("the blocks of a run do not all have the same clocks")
    return [clock for clock in CLOCKS if clock in present[0]]


def _timing_cells(
    rounds: Sequence[Round], clock: Clock, tpot_ms: float | None
) -> tuple[dict[str, Any], Figures]:
    by_round: list[tuple[BlockSummary, ...]] = [
        tuple(summarize(block.samples[clock]) for block in one.blocks) for one in rounds
    ]
    figures = over_rounds([compare(*(block.median_ms for block in one)) for one in by_round])
    cells = figure_cells(figures, tpot_ms)
    for index, arm in enumerate(ARMS):
        for p in (5, 95, 99):
            values = [getattr(one[index], f"p{p}_ms") for one in by_round]
            cells[f"{arm}_p{p}_ms"] = round(median_figure(values).median, DECIMALS)
    return cells, figures


def rows(
    settings: RunSettings,
    rounds: Sequence[Round],
    *,
    equal: bool,
    partial: bool,
    environment: Mapping[str, Any],
    run_id: str,
    started: str,
) -> pd.DataFrame:
    """One row per clock that the samples have, in the order host, ready, device.

    Medians and percentiles are taken over the steps of a block, then over the rounds (DESIGN
    section 3). Where the outputs differ no timing is reported: all time columns stay empty.
    `environment` holds any of `schema.ENVIRONMENT`; `started` is UTC in ISO 8601.

    Raises:
        ValueError: no finished round, blocks with different clocks, a time that is not above
            zero, or an environment key that is not a column.
    """
    if not rounds:
        raise ValueError("no finished round: there is nothing to write")
    common = {
        "schema": VERSION,
        "run": run_id,
        "started": started,
        "partial": partial,
        "position": settings.position,
        "block_sizes": settings.block_sizes_text,
        "max_model_len": settings.max_model_len,
        "max_num_reqs": settings.max_num_reqs,
        "max_num_tokens": settings.max_num_tokens,
        "mrope": settings.mrope,
        "prompt_embeds": settings.prompt_embeds,
        "candidate": settings.candidate,
        "warmup": settings.warmup,
        "iters": settings.iters,
        "rounds": len(rounds),
        "tpot_ms": settings.tpot_ms,
        "equal": equal,
    } | environment_record(environment)
    records = []
    for clock in _clocks(rounds):
        cells, figures = _timing_cells(rounds, clock, settings.tpot_ms)
        timing = cells if equal else {}
        records.append(common | {"clock": clock, "verdict": verdict(figures, equal)} | timing)
    return frame_of(records)

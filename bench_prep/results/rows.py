"""A run's rounds as rows of the result table: one row per clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Any

from bench_prep.errors import Inconclusive
from bench_prep.measure.comparison import judge
from bench_prep.measure.doubts import PIN
from bench_prep.measure.records import ARMS, Clock, Round
from bench_prep.measure.state import Span
from bench_prep.measure.statistics import (
    Figures,
    median_figure,
    share_of_step,
    summarize,
)
from bench_prep.measure.stopping import StoppedBy
from bench_prep.measure.verdict import Effect, clocks_of
from bench_prep.results.machine import machine_cells
from bench_prep.results.row import VERSION, Row, environment_record
from bench_prep.settings import OF_WORKTREE, RunSettings

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


def effect_cells(effect: Effect) -> dict[str, Any]:
    """The columns of the effect, in percent; the ends are None without an interval."""
    ends = {"": effect.value, "_low": effect.low, "_high": effect.high}
    return {
        f"effect{end}_pct": None if value is None else round(100 * value, DECIMALS)
        for end, value in ends.items()
    }


def _percentile_cells(rounds: Sequence[Round], clock: Clock) -> dict[str, float]:
    cells = {}
    for index, arm in enumerate(ARMS):
        blocks = [summarize(one.blocks[index].samples[clock]) for one in rounds]
        for p in (5, 95, 99):
            values = [getattr(block, f"p{p}_ms") for block in blocks]
            cells[f"{arm}_p{p}_ms"] = round(median_figure(values).median, DECIMALS)
    return cells


def _preempted_pct(rounds: Sequence[Round], clock: Clock) -> float | None:
    """Steps that are in no median of this clock; None where nobody counted them."""
    blocks = [block for one in rounds for block in one.blocks]
    if any("preempted" not in block.samples for block in blocks):
        return None
    kept = sum(len(block.times(clock)) for block in blocks)
    return round(100 * (1 - kept / sum(len(block.samples[clock]) for block in blocks)), 3)


@dataclass(frozen=True)
class Measured:
    """What a run found, of which its rows are made.

    Attributes:
        environment: any of the environment columns.
        started: UTC in ISO 8601.
        slices: interleaved parts of each block.
        stopped_by: why there were no more rounds.
        spans: the machine before and after each round.
        clock_cost, floor: of `clocks.clock_cost` and `clocks.launch_floor`.
        model_config_sha256: of a whole engine's model.
    """

    settings: RunSettings
    rounds: Sequence[Round]
    environment: Mapping[str, Any]
    run_id: str
    started: str
    equal: bool = True
    partial: bool = False
    stopped_by: StoppedBy | None = None
    slices: int | None = None
    spans: Sequence[Span] = ()
    clock_cost: Mapping[Clock, int] = field(default_factory=dict)
    floor: Mapping[Clock, int] = field(default_factory=dict)
    model_config_sha256: str = ""


def rows(measured: Measured) -> list[Row]:
    """One row per clock that the samples have, in the order host, ready, device.

    Medians and percentiles are taken over the steps of a block, then over the rounds that
    count. Where the outputs differ no timing is reported: all time columns stay
    empty.

    Raises:
        Inconclusive: every round was left out.
        ValueError: no round, blocks with different clocks, a time that is not above zero, or an
            environment key that is not a column.
    """
    settings, rounds = measured.settings, measured.rounds
    if not rounds:
        raise ValueError("no finished round: there is nothing to write")
    counted = [one for one in rounds if not one.left_out]
    if not counted:
        raise Inconclusive(
            f"all {len(rounds)} rounds were disturbed and left out, the last one because "
            f"{rounds[-1].left_out}",
            PIN
            if "preempted" in rounds[-1].left_out
            else "remove the disturbance, or raise --warmup, and run again",
        )
    clocks = clocks_of(counted)
    common = Row(
        schema=VERSION,
        run=measured.run_id,
        started=measured.started,
        partial=measured.partial,
        position=settings.position,
        block_sizes=settings.block_sizes_text,
        max_model_len=settings.max_model_len,
        max_num_reqs=settings.max_num_reqs,
        max_num_tokens=settings.max_num_tokens,
        mrope=settings.mrope,
        prompt_embeds=settings.prompt_embeds,
        candidate=settings.candidate,
        model_config_sha256=measured.model_config_sha256,
        warmup=settings.warmup,
        iters=len(counted[0].blocks[0].samples[clocks[0]]),
        slices=measured.slices,
        margin_pct=settings.margin,
        budget_s=None if isinf(settings.method.limit_s) else settings.method.limit_s,
        rounds=len(counted),
        rounds_left_out=len(rounds) - len(counted),
        stopped_by=measured.stopped_by or "",
        tpot_ms=settings.tpot_ms,
        equal=measured.equal,
        **machine_cells(rounds, measured.spans),
        **environment_record(measured.environment),
    )
    made = []
    for clock in clocks:
        apart = settings.candidate == OF_WORKTREE
        judged = judge(rounds, clock, settings.margin / 100, measured.equal, apart=apart)
        cells: dict[str, Any] = {}
        if measured.equal and judged.figures is not None:
            cells = figure_cells(judged.figures, settings.tpot_ms)
            cells |= effect_cells(judged.effect) | _percentile_cells(counted, clock)
            cells["preempted_pct"] = _preempted_pct(counted, clock)
        row = replace(
            common,
            clock=clock,
            verdict=judged.verdict,
            withheld=judged.withheld or "",
            clock_cost_ns=measured.clock_cost.get(clock),
            floor_ns=measured.floor.get(clock),
            **cells,
        )
        made.append(row)
    return made

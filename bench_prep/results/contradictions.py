"""What cannot be true of one row: figures that contradict each other, as after an edit by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from bench_prep.measure.statistics import ROUNDS_FOR_INTERVAL, Comparison, compare
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT, Effect, log_ratio, verdict
from bench_prep.results.row import BLOCK_COLUMNS, VERDICT_SINCE

#: Rows of ours have nine decimals; in other people's files figures are rounded for reading.
_OURS, _OTHERS = 1e-4, 1e-2
#: How far a median of ratios lies from the ratio of two medians beyond their scatter.
_MEDIANS = 0.05
#: A row's own scatter and drift excuse so much and no more, or an edit could excuse itself.
_MOST_SCATTER = math.log(2)

#: Fractions are written as per cent with nine decimals.
_ROUNDED = 1e-11

_FORMULAS = {
    "baseline_ms": ("min(baseline_before, baseline_after)", "baseline_ms", 1),
    "drift_pct": ("|baseline_before - baseline_after| / baseline", "drift", 100),
    "speedup": ("baseline / candidate", "speedup", 1),
    "saved_ms": ("baseline - candidate", "saved_ms", 1),
    "reduction_pct": ("1 - candidate / baseline", "reduction", 100),
}
_SEVERAL = {name: formula for name, (formula, _, _) in _FORMULAS.items()} | {
    "effect_pct": "candidate / sqrt(baseline_before * baseline_after) - 1"
}
_INTERVALS = (
    ("speedup", "speedup_low", "speedup_high"),
    ("saved_ms", "saved_low_ms", "saved_high_ms"),
    ("reduction_pct", "reduction_low_pct", "reduction_high_pct"),
    ("effect_pct", "effect_low_pct", "effect_high_pct"),
)


def contradiction(cells: Mapping[str, Any]) -> str | None:
    """The first contradiction in a row's cells, in words; None where there is none.

    `cells` has what the file gives, parsed; whatever is None or absent contradicts nothing.
    """
    if cells.get("equal") is False or cells.get("verdict") == "different":
        return None  # no timing is read from it
    return next(_contradictions({k: v for k, v in cells.items() if v is not None}), None)


def _contradictions(cells: dict[str, Any]) -> Iterator[str]:
    for name, low, high in _INTERVALS:
        if {name, low, high} <= cells.keys() and not (
            _at_most(cells[low], cells[name]) and _at_most(cells[name], cells[high])
        ):
            yield (
                f"{name} {cells[name]:g} is outside its interval, {cells[low]:g} to {cells[high]:g}"
            )
    yield from _against_formulas(cells)
    for end in ("low", "high"):
        speedup, reduction = cells.get(f"speedup_{end}"), cells.get(f"reduction_{end}_pct")
        if speedup and reduction is not None and not _near(reduction, 100 * (1 - 1 / speedup), 100):
            yield f"reduction_{end}_pct {reduction:g} is not 1 - 1 / speedup_{end} ({speedup:g})"
    if {"saved_ms", "tpot_ms", "share_of_tpot_pct"} <= cells.keys():
        share = 100 * cells["saved_ms"] / cells["tpot_ms"]
        if not _near(cells["share_of_tpot_pct"], share, abs(share), _tolerance(cells)):
            yield f"share_of_tpot_pct {cells['share_of_tpot_pct']:g} is not saved / TPOT"
    yield from _against_verdict(cells)


def _against_formulas(cells: dict[str, Any]) -> Iterator[str]:
    """Of one round every figure follows; medians over several follow within their scatter."""
    if not all(name in cells for name in BLOCK_COLUMNS):
        return
    one = compare(*(cells[name] for name in BLOCK_COLUMNS))
    if cells.get("rounds", 1) == 1:
        for name, (formula, field, factor) in _FORMULAS.items():
            expected = getattr(one, field) * factor
            # A difference of two blocks is as exact as the blocks are.
            scale = one.baseline_ms if name.endswith("_ms") else factor
            scale = max(abs(expected), scale)
            if name in cells and not _near(cells[name], expected, scale, _tolerance(cells)):
                yield f"{name} {cells[name]:g} is not {formula} ({expected:g})"
        return
    for name, low, high in _INTERVALS:
        if name not in cells:
            continue
        expected, away, width = _over_rounds(cells, name, low, high, one)
        scatter = 2 * (width + cells.get("drift_pct", 0) / 100)
        if not away <= min(scatter, _MOST_SCATTER) + _MEDIANS:
            yield f"{name} {cells[name]:g} is far from {_SEVERAL[name]} ({expected:g})"


def _over_rounds(
    cells: dict[str, Any], name: str, low: str, high: str, one: Comparison
) -> tuple[float, float, float]:
    """A figure as the blocks have it, how far the row's is from that, and its interval's width.

    The last two are logarithms of candidate / baseline, and of the saving shares of the longer
    block.
    """
    d = log_ratio(one.baseline_before_ms, one.candidate_ms, one.baseline_after_ms)
    longer = max(one.baseline_ms, one.candidate_ms)
    scales: dict[str, tuple[float, Callable[[float], float]]] = {
        "speedup": (one.speedup, lambda value: -_log(value)),
        "saved_ms": (one.saved_ms, lambda value: value / longer),
        "reduction_pct": (100 * one.reduction, lambda value: _log(1 - value / 100)),
        "effect_pct": (100 * math.expm1(d), lambda value: _log(1 + value / 100)),
    }
    expected, on_scale = scales[name]
    width = _MOST_SCATTER
    if low in cells and high in cells:
        width = abs(on_scale(cells[high]) - on_scale(cells[low]))
    ends = [1 + cells.get(f"effect_{end}_pct", 0) / 100 for end in ("low", "high")]
    width = max(width, abs(_log(ends[1]) - _log(ends[0])) if min(ends) > 0 else 0)
    return expected, abs(on_scale(cells[name]) - on_scale(expected)), width


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _against_rounds(cells: dict[str, Any]) -> Iterator[str]:
    """In rows of ours the intervals are there from a number of rounds on, and not before."""
    rounds = cells.get("rounds", 0)
    for name, low, high in _INTERVALS:
        effect = name == "effect_pct"
        due = _has_effect_interval(cells) if effect else rounds >= ROUNDS_FOR_INTERVAL
        if due and not {name, low, high} <= cells.keys():
            yield f"{name} or its interval is missing, and {rounds} rounds have one"
        if not due and (low in cells or high in cells):
            left_out = cells.get("rounds_left_out", 0)
            yield f"{name} has an interval, and {rounds} rounds have none, {left_out} left out"


def _has_effect_interval(cells: Mapping[str, Any]) -> bool:
    """As `comparison.judge` decides it."""
    rounds: int = cells.get("rounds", 0)
    return rounds >= ROUNDS_FOR_VERDICT and cells.get("rounds_left_out", 0) <= rounds


def _against_verdict(cells: dict[str, Any]) -> Iterator[str]:
    said = cells.get("verdict")
    if cells.get("schema", 0) >= VERDICT_SINCE:
        if said is None or "margin_pct" not in cells or "effect_pct" not in cells:
            yield "a verdict, its margin_pct or its effect_pct is missing"
            return
        ends = [cells.get(f"effect_{end}_pct") for end in ("low", "high")]
        if not _has_effect_interval(cells):
            ends = [None, None]
        low, high = (None if end is None else end / 100 for end in ends)
        effect = Effect(cells["effect_pct"] / 100, low, high, cells.get("rounds", 0))
        margin = cells["margin_pct"] / 100
        follows = verdict(effect, margin)
        withheld = said == "inconclusive" and cells.get("withheld")
        if not withheld and said not in (follows, *_at_the_edge(effect, margin)):
            yield f"the verdict {said} does not follow from the interval of the effect ({follows})"
        yield from _against_rounds(cells)
        return
    # As it was decided before there was an effect: the interval of the speedup excludes 1.
    gain = {"faster": 1, "slower": -1}.get(said or "")
    for name in ("speedup", "speedup_low", "speedup_high"):
        if gain and name in cells and (cells[name] - 1) * gain <= 0:
            yield f"the verdict {said} contradicts {name} {cells[name]:g}"


def _at_the_edge(effect: Effect, margin: float) -> Iterator[str]:
    """The verdicts if ends at 0 or at the margin were rounded to their other side."""
    if effect.low is not None and effect.high is not None:
        for value, low, high in product((-_ROUNDED, _ROUNDED), repeat=3):
            one = Effect(effect.value + value, effect.low + low, effect.high + high, effect.rounds)
            yield verdict(one, margin)


def _tolerance(cells: Mapping[str, Any]) -> float:
    return _OURS if "schema" in cells else _OTHERS


def _near(value: float, expected: float, scale: float, tolerance: float = _OURS) -> bool:
    return abs(value - expected) <= tolerance * scale + 1e-8


def _at_most(one: float, other: float) -> bool:
    return one <= other + 1e-8

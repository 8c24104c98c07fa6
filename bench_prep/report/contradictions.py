"""What cannot be true of one row: figures that contradict each other, as after an edit by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from bench_prep.measure.statistics import compare
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT, Effect, verdict
from bench_prep.report.schema import BLOCK_COLUMNS, VERSION

#: Rows of ours have nine decimals; in other people's files figures are rounded for reading.
_OURS, _OTHERS = 1e-4, 1e-2
#: How far a median of ratios lies from the ratio of two medians beyond their scatter.
_MEDIANS = 0.05

#: Fractions are written as per cent with nine decimals.
_ROUNDED = 1e-11

_FORMULAS = {
    "baseline_ms": ("min(baseline_before, baseline_after)", "baseline_ms", 1),
    "drift_pct": ("|baseline_before - baseline_after| / baseline", "drift", 100),
    "speedup": ("baseline / candidate", "speedup", 1),
    "saved_ms": ("baseline - candidate", "saved_ms", 1),
    "reduction_pct": ("1 - candidate / baseline", "reduction", 100),
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
    yield from _against_formulas(cells)
    for name, low, high in _INTERVALS:
        if {name, low, high} <= cells.keys() and not (
            _at_most(cells[low], cells[name]) and _at_most(cells[name], cells[high])
        ):
            yield (
                f"{name} {cells[name]:g} is outside its interval, {cells[low]:g} to {cells[high]:g}"
            )
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
    if "speedup" in cells and cells["speedup"] > 0:
        low, high = cells.get("speedup_low", 0), cells.get("speedup_high", 0)
        scatter = math.log(high / low) if 0 < low < high else math.log(2)
        scatter = 2 * (scatter + cells.get("drift_pct", 0) / 100) + _MEDIANS
        if abs(math.log(cells["speedup"] / one.speedup)) > scatter:
            yield (
                f"speedup {cells['speedup']:g} is far from baseline / candidate ({one.speedup:g})"
            )


def _against_verdict(cells: dict[str, Any]) -> Iterator[str]:
    said = cells.get("verdict")
    if cells.get("schema", 0) >= VERSION:
        if said is None or "margin_pct" not in cells or "effect_pct" not in cells:
            yield "a verdict, its margin_pct or its effect_pct is missing"
            return
        rounds = cells.get("rounds", 0)
        ends = [cells.get(f"effect_{end}_pct") for end in ("low", "high")]
        if rounds < ROUNDS_FOR_VERDICT:
            ends = [None, None]
        low, high = (None if end is None else end / 100 for end in ends)
        effect = Effect(cells["effect_pct"] / 100, low, high, rounds)
        margin = cells["margin_pct"] / 100
        follows = verdict(effect, margin)
        if said not in (follows, *_at_the_edge(effect, margin)):
            yield f"the verdict {said} does not follow from the interval of the effect ({follows})"
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

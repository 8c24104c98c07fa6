"""What is said about one run: titled tables of plain text, the same for Rich and for Markdown.

The verdict and what must be known to believe it stand first, the settings last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench_prep.report.cells import (
    CONFIDENT,
    HOST_IS_READY,
    OUTPUT_TOKENS,
    change,
    cumulative,
    intervals,
    label,
    milliseconds,
    missing,
    percent,
    ratio,
    said,
    together,
    with_unit,
)
from bench_prep.report.machine import state_notes, state_rows
from bench_prep.report.notes import notes_section, why_inconclusive
from bench_prep.report.section import Section
from bench_prep.results.row import BY_NAME, Row

NOT_THE_SERVICE = (
    "This is the speedup of one component, the input preparation of a decode step. "
    "A component's speedup is not the service's."
)
FORMULAS = {
    "baseline": "baseline = min(before, after)",
    "drift": "drift = |before - after| / baseline",
    "speedup": "speedup = baseline / candidate",
    "saved": "saved = baseline - candidate",
    "reduction": "reduction = 1 - candidate / baseline",
    "floor": "floor = one launch of a tiny kernel",
    "above": "candidate / floor",
    "share": "share of TPOT = saved / TPOT",
    "cumulative": "saved over N output tokens = (N - 1) * saved",
    "effect": "change = candidate / sqrt(before * after) - 1, over all rounds",
}
STOPPED = {
    "width": "the interval of the change was narrow enough",
    "budget": "the budget was spent",
    "rounds": "all rounds that were asked for were done",
    "interrupted": "it was interrupted",
}
SAME = "same: no difference larger than the margin."

_CLOCKS = {
    "host": "Host time: the calling thread is busy in the preparation",
    HOST_IS_READY: "Host time, and ready time because there is no device: the call's own time",
    "ready": "Ready time: from the call until all its outputs are on the device",
    "device": "Device time: what the device itself spends",
    "step": "Step time: from one preparation to the next, the time per output token",
    "": "Unknown clock: the file does not name it",
}
_BLOCKS = {
    "baseline_before": "baseline before",
    "candidate": "candidate",
    "baseline_after": "baseline after",
}
#: Why baseline is not exactly the smaller of the two medians, and so on.
MEDIANS = (
    "Every figure below is the median over the rounds of what each round gives by the formula."
)


def tpot_note(rows: Sequence[Row]) -> str:
    """The share of TPOT where a TPOT is known, else how to see it."""
    if {row.run for row in rows} == {row.run for row in rows if row.clock == "step"}:
        return "The step clock is the engine's own time per output token (TPOT)."
    if all(row.tpot_ms is None for row in rows):
        return "Give --tpot-ms to see the share of the service's time per output token (TPOT)."
    return f"{FORMULAS['share']}; TPOT is the service's time per output token, as given."


def _facts(row: Row, group: str) -> list[tuple[str, str]]:
    names = [name for name, column in BY_NAME.items() if column.group == group]
    names = [name for name in names if name != "clock" and not missing(row.cell(name))]
    return [(label(name), with_unit(name, row.cell(name))) for name in names]


def _figures(row: Row) -> Section:
    speedup, saved, reduction = intervals(row)
    figures = [
        (FORMULAS["baseline"], milliseconds(row.baseline_ms, " ms"), ""),
        (FORMULAS["drift"], percent(row.drift_pct, 2), ""),
        (FORMULAS["speedup"], ratio(row.speedup), speedup),
        (FORMULAS["saved"], milliseconds(row.saved_ms, " ms"), saved),
        (FORMULAS["reduction"], percent(row.reduction_pct, 1), reduction),
    ]
    if row.floor_ns is not None and row.candidate_ms is not None:
        floor = row.floor_ns / 1e6
        figures.append((FORMULAS["floor"], milliseconds(floor, " ms"), ""))
        figures.append((FORMULAS["above"], ratio(row.candidate_ms / floor), ""))
    if row.share_of_tpot_pct is not None:
        figures.append((FORMULAS["share"], percent(row.share_of_tpot_pct, 2), ""))
    return Section(
        title=_CLOCKS.get(row.clock, row.clock),
        header=("figure", "value", "95 % interval"),
        rows=tuple(figures),
    )


def _verdicts(rows: Sequence[Row]) -> Section:
    notes = [] if all(row.effect_pct is None for row in rows) else [FORMULAS["effect"]]
    if any(row.verdict == "same" for row in rows):
        notes.append(SAME)
    stopped = STOPPED.get(rows[0].stopped_by)
    if stopped:
        notes.append(f"The timing ended because {stopped}.")
    return Section(
        "Verdict",
        ("clock", "verdict", "change", CONFIDENT, "margin"),
        tuple((row.clock or "unknown", said(row), *change(row)) for row in rows),
        left=2,
        notes=tuple(notes),
    )


def _blocks(rows: Sequence[Row]) -> Section:
    blocks = tuple(
        (
            row.clock or "unknown",
            text,
            *(milliseconds(row.cell(f"{block}{p}_ms")) for p in ("", "_p5", "_p95", "_p99")),
        )
        for row in rows
        for block, text in _BLOCKS.items()
    )
    rounds = rows[0].rounds
    over = "" if rounds in (None, 1) else f", each the median of {rounds} rounds"
    return Section(
        title=f"Blocks: ms per step{over}",
        header=("clock", "block", "median", "p5", "p95", "p99"),
        rows=blocks,
        left=2,
        notes=(MEDIANS,) if over else (),
    )


def _facts_section(title: str, facts: Iterable[tuple[str, str]]) -> Section:
    """Facts one behind the other: a line of a table each would push the figures off the screen."""
    text = "; ".join(f"{name}: {value}" for name, value in facts)
    return Section(title, notes=(text or "Not stated in the file.",))


def verdict_line(row: Row) -> str:
    """What one row says, in one line."""
    effect, between, _ = change(row)
    why = why_inconclusive(row)
    known = f"; {why}" if why else f" ({between})"
    return f"{said(row)}: {row.clock} time changes by {effect}{known}"


def run_sections(rows: Sequence[Row]) -> list[Section]:
    """Everything about one run, whose clocks are `rows`."""
    rows = together(rows)
    first = rows[0]
    names = [row.clock or "unknown clock" for row in rows]
    timed = [row for row in rows if row.verdict != "different"]
    sections = [_verdicts(timed)] if timed else []
    sections += notes_section(rows, names)
    if timed:
        sections.append(_blocks(timed))
        sections.extend(map(_figures, timed))
        sections[-1] = replace(sections[-1], notes=(NOT_THE_SERVICE, tpot_note(timed)))
        clocks = tuple(row.clock or "unknown" for row in timed)
        by_clock = [cumulative(row) for row in timed]
        sections.append(
            Section(
                "Saved over a whole request, in ms",
                ("output tokens", *clocks),
                tuple(
                    (str(tokens), *(column[index] for column in by_clock))
                    for index, tokens in enumerate(OUTPUT_TOKENS)
                ),
                notes=(FORMULAS["cumulative"] + "; the first token comes from the prefill.",),
            )
        )
    state = state_rows(first)
    if state:
        header = ("state", "before", "after")
        sections.append(Section("Machine while it timed", header, state, 3, state_notes(first)))
    identity = [(label(n), first.cell(n)) for n in ("run", "started") if first.cell(n)]
    settings = [*identity, *_facts(first, "setting")]
    if settings:
        sections.append(_facts_section("Run", settings))
    sections.append(_facts_section("Machine and versions", _facts(first, "environment")))
    return sections

"""What is said about one run: titled tables of plain text, the same for Rich and for Markdown.

The verdict and what must be known to believe it stand first, the settings last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

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
from bench_prep.results.schema import BY_NAME

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


def tpot_note(frame: pd.DataFrame) -> str:
    """The share of TPOT where a TPOT is known, else how to see it."""
    if all("step" in set(clocks) for _, clocks in frame.groupby("run")["clock"]):
        return "The step clock is the engine's own time per output token (TPOT)."
    if all(missing(value) for value in frame["tpot_ms"]):
        return "Give --tpot-ms to see the share of the service's time per output token (TPOT)."
    return f"{FORMULAS['share']}; TPOT is the service's time per output token, as given."


def _facts(row: pd.Series[Any], group: str) -> list[tuple[str, str]]:
    names = [name for name, column in BY_NAME.items() if column.group == group]
    names = [name for name in names if name != "clock" and not missing(row[name])]
    return [(label(name), with_unit(name, row[name])) for name in names]


def _figures(row: pd.Series[Any]) -> Section:
    speedup, saved, reduction = intervals(row)
    rows = [
        (FORMULAS["baseline"], milliseconds(row["baseline_ms"], " ms"), ""),
        (FORMULAS["drift"], percent(row["drift_pct"], 2), ""),
        (FORMULAS["speedup"], ratio(row["speedup"]), speedup),
        (FORMULAS["saved"], milliseconds(row["saved_ms"], " ms"), saved),
        (FORMULAS["reduction"], percent(row["reduction_pct"], 1), reduction),
    ]
    if not missing(row["floor_ns"]) and not missing(row["candidate_ms"]):
        floor = row["floor_ns"] / 1e6
        rows.append((FORMULAS["floor"], milliseconds(floor, " ms"), ""))
        rows.append((FORMULAS["above"], ratio(row["candidate_ms"] / floor), ""))
    if not missing(row["share_of_tpot_pct"]):
        rows.append((FORMULAS["share"], percent(row["share_of_tpot_pct"], 2), ""))
    return Section(
        title=_CLOCKS.get(str(row["clock"]), str(row["clock"])),
        header=("figure", "value", "95 % interval"),
        rows=tuple(rows),
    )


def _verdicts(frame: pd.DataFrame) -> Section:
    notes = [] if all(missing(value) for value in frame["effect_pct"]) else [FORMULAS["effect"]]
    if any(verdict == "same" for verdict in frame["verdict"]):
        notes.append(SAME)
    stopped = STOPPED.get(str(frame["stopped_by"].iloc[0]))
    if stopped:
        notes.append(f"The timing ended because {stopped}.")
    return Section(
        "Verdict",
        ("clock", "verdict", "change", CONFIDENT, "margin"),
        tuple(
            (str(row["clock"]) or "unknown", said(row), *change(row)) for _, row in frame.iterrows()
        ),
        left=2,
        notes=tuple(notes),
    )


def _blocks(frame: pd.DataFrame) -> Section:
    rows = tuple(
        (
            str(row["clock"]) or "unknown",
            text,
            *(milliseconds(row[f"{block}{p}_ms"]) for p in ("", "_p5", "_p95", "_p99")),
        )
        for _, row in frame.iterrows()
        for block, text in _BLOCKS.items()
    )
    rounds = frame["rounds"].iloc[0]
    over = "" if missing(rounds) or rounds == 1 else f", each the median of {rounds} rounds"
    return Section(
        title=f"Blocks: ms per step{over}",
        header=("clock", "block", "median", "p5", "p95", "p99"),
        rows=rows,
        left=2,
        notes=(MEDIANS,) if over else (),
    )


def _facts_section(title: str, facts: Iterable[tuple[str, str]]) -> Section:
    """Facts one behind the other: a line of a table each would push the figures off the screen."""
    text = "; ".join(f"{name}: {value}" for name, value in facts)
    return Section(title, notes=(text or "Not stated in the file.",))


def verdict_line(row: pd.Series[Any]) -> str:
    """What one row says, in one line."""
    effect, between, _ = change(row)
    why = why_inconclusive(row)
    known = f"; {why}" if why else f" ({between})"
    return f"{said(row)}: {row['clock']} time changes by {effect}{known}"


def run_sections(frame: pd.DataFrame) -> list[Section]:
    """Everything about one run, whose clocks are the rows of `frame`."""
    frame = together(frame)
    first = frame.iloc[0]
    names = [str(clock) or "unknown clock" for clock in frame["clock"]]
    timed = frame[frame["verdict"] != "different"]
    sections = [_verdicts(timed)] if len(timed) else []
    sections += notes_section(frame, names)
    if len(timed):
        sections.append(_blocks(timed))
        sections.extend(_figures(row) for _, row in timed.iterrows())
        sections[-1] = replace(sections[-1], notes=(NOT_THE_SERVICE, tpot_note(timed)))
        clocks = tuple(str(clock) or "unknown" for clock in timed["clock"])
        by_clock = [cumulative(row) for _, row in timed.iterrows()]
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
    identity = [(label(n), str(first[n])) for n in ("run", "started") if not missing(first[n])]
    settings = [*identity, *_facts(first, "setting")]
    if settings:
        sections.append(_facts_section("Run", settings))
    sections.append(_facts_section("Machine and versions", _facts(first, "environment")))
    return sections

"""What a reader must know before believing the numbers: the notes below a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT
from bench_prep.report.cells import OLD_RULE, change, is_by_old_rule
from bench_prep.report.machine import machine_warnings
from bench_prep.report.section import Section
from bench_prep.results.row import Row


def why_inconclusive(row: Row) -> str:
    """Why a row's verdict is inconclusive, in one clause; empty for any other verdict."""
    if row.verdict != "inconclusive":
        return ""
    if row.effect_pct is None:
        return "the file says so"
    if row.withheld:
        return row.withheld
    if row.effect_low_pct is None or row.effect_high_pct is None:
        rounds = 1 if row.rounds is None else row.rounds
        counted = "1 round" if rounds == 1 else f"{rounds} rounds"
        if rounds >= ROUNDS_FOR_VERDICT:
            return f"{row.rounds_left_out} rounds were left out, more than the {counted} counted"
        return f"{counted}, and a verdict needs {ROUNDS_FOR_VERDICT}"
    _, between, margin = change(row)
    return f"the change lies between {between.replace(' to ', ' and ')}, the margin is {margin}"


def warnings(rows: Sequence[Row], names: list[str]) -> list[str]:
    """What a reader must know before believing the numbers; `names` says which row is meant."""
    found = []

    def which(flags: Iterable[Any]) -> str:
        hit = [name for name, flag in zip(names, flags, strict=True) if flag]
        return "" if len(hit) == len(names) else f" ({', '.join(hit)})"

    different = [row.verdict == "different" for row in rows]
    if any(different):
        found.append(f"The outputs differ: no timing is reported{which(different)}.")
    partial = [bool(row.partial) for row in rows]
    if any(partial):
        found.append(f"Partial: interrupted, only the finished rounds are counted{which(partial)}.")
    fallen_back = [row.dispatched_pct is not None and row.dispatched_pct < 100 for row in rows]
    if any(fallen_back):
        found.append(
            "Not every timed step took the fast path; the others fell back to vLLM's own"
            f"{which(fallen_back)}."
        )
    alone = [row.compared is False for row in rows]
    if any(alone):
        found.append(
            "The installed vLLM was timed as it is: its files are those of its RECORD, and no "
            f"worktree was given to compare them with{which(alone)}."
        )
    old = [is_by_old_rule(row) for row in rows]
    if any(old):
        found.append(
            f"Verdict by the {OLD_RULE}{which(old)}: from the drift and the speedup's 95 % "
            "interval, where there was one. Today's is from the interval of the change and a "
            "margin; run again for it."
        )
    unknown = [row.equal is None for row in rows]
    if any(unknown):
        found.append(f"Whether the outputs were equal is not stated{which(unknown)}.")
    reasons = [why_inconclusive(row) for row in rows]
    found.extend(
        f"Inconclusive{f' ({name})' if len(names) > 1 else ''}: {reason}."
        for name, reason in zip(names, reasons, strict=True)
        if reason
    )
    found.extend(machine_warnings(rows, which))
    if any(reasons):
        found.append(
            "What to do: stop other work on the machine"
            f"{_longer({row.stopped_by for row in rows})}, and run again."
        )
    return found


def _longer(stopped_by: set[str]) -> str:
    """How to have more rounds, by what ended those that there are."""
    options = {"rounds": "give more --rounds or leave it out", "budget": "give a larger --budget"}
    return "".join(f", {text}" for name, text in options.items() if name in stopped_by)


def notes_section(rows: Sequence[Row], names: list[str]) -> list[Section]:
    """The `warnings` as a section of their own, where there are any."""
    notes = tuple(warnings(rows, names))
    return [Section("Notes", notes=notes)] if notes else []

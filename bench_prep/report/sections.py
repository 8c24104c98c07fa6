"""What is said about one run: titled tables of plain text, the same for Rich and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench_prep.measure.statistics import ROUNDS_FOR_INTERVAL, cumulative_saving_ms
from bench_prep.measure.verdict import CONFIDENCE, ROUNDS_FOR_VERDICT
from bench_prep.report.machine import machine_warnings, state_notes, state_rows
from bench_prep.report.schema import BY_NAME

#: Lengths of the requests whose saving is shown, in output tokens.
OUTPUT_TOKENS = (128, 512, 1024, 2048, 4096)

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
    "share": "share of TPOT = saved / TPOT",
    "cumulative": "saved over N output tokens = (N - 1) * saved",
    "effect": "change = candidate / sqrt(before * after) - 1, over all rounds",
}
CONFIDENT = f"{100 * CONFIDENCE:g} % interval"
STOPPED = {
    "width": "the interval of the change was narrow enough",
    "budget": "the budget was spent",
    "rounds": "all rounds that were asked for were done",
    "interrupted": "it was interrupted",
}
SAME = "same: no difference larger than the margin."
NEEDS_ROUNDS = f"needs {ROUNDS_FOR_INTERVAL} rounds"
NONE = "-"

_CLOCKS = {
    "host": "Host time: the calling thread is busy in the preparation",
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
_LABELS = {
    "max_model_len": "model length",
    "max_num_reqs": "batch, at most",
    "max_num_tokens": "tokens per step, at most",
    "mrope": "M-RoPE",
    "prompt_embeds": "prompt embeddings",
    "iters": "timed steps per block",
    "slices": "interleaved slices per block",
    "margin_pct": "margin",
    "budget_s": "budget",
    "warmup": "untimed steps before",
    "tpot_ms": "TPOT",
    "run": "run",
    "device_name": "device",
    "cpu_model": "processor",
    "vllm_version": "vLLM",
    "vllm_commit": "vLLM commit",
    "worktree_dirty": "worktree has changes",
    "compared": "compared to a worktree",
    "equality_steps": "steps compared for equality",
    "boundaries_crossed": "block boundaries in them",
    "drawn_steps": "timed steps compared, too",
    "seed": "seed of requests and steps",
    "dispatched_pct": "steps the fast path took",
    "torch_version": "PyTorch",
    "triton_version": "Triton",
    "python_version": "Python",
    "bench_prep_version": "bench-prep",
}
#: A hash is shown by its beginning; the CSV has all of it.
_HASH_DIGITS = 16


@dataclass(frozen=True)
class Section:
    """A titled table of texts and the sentences below it; either may be empty.

    The first `left` columns are aligned to the left, the others to the right.
    """

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left: int = 1
    notes: tuple[str, ...] = ()


def missing(value: Any) -> bool:
    """Whether a cell is empty: NA, NaN, None or an empty text."""
    return value is None or value is pd.NA or value == "" or bool(pd.isna(value))


def milliseconds(value: Any, unit: str = "") -> str:
    """A time in milliseconds with 6 decimals, which is a nanosecond."""
    return NONE if missing(value) else f"{value:.6f}{unit}"


def ratio(value: Any) -> str:
    """A speedup, such as 2.5576x."""
    return NONE if missing(value) else f"{value:.4f}x"


def percent(value: Any, decimals: int) -> str:
    """A percentage with the decimals that are asked for, such as 60.9 %."""
    return NONE if missing(value) else f"{value:.{decimals}f} %"


def label(name: str) -> str:
    """What a column is called in a table."""
    if name.endswith("_sha256"):
        return name.removesuffix("_sha256").replace("_", " ") + " SHA-256"
    return _LABELS.get(name, name.replace("_", " ") if name in BY_NAME else name)


def shown(name: str, value: Any) -> str:
    """A setting's or environment's value as a reader wants it, with its unit."""
    if missing(value):
        return NONE
    column = BY_NAME.get(name)
    if column is None or column.kind == "text":
        return str(value)[:_HASH_DIGITS] if name.endswith("_sha256") else str(value)
    if column.kind == "bool":
        return "yes" if value else "no"
    return f"{value:g} {column.unit}" if column.kind == "float" else str(value)


def cumulative(row: pd.Series[Any]) -> list[str]:
    """The saving in ms over requests of `OUTPUT_TOKENS` tokens, to a microsecond."""
    if missing(row["saved_ms"]):
        return [NONE] * len(OUTPUT_TOKENS)
    return [f"{cumulative_saving_ms(tokens, row['saved_ms']):.3f}" for tokens in OUTPUT_TOKENS]


def interval(row: pd.Series[Any], low: str, high: str, decimals: int) -> str:
    """A 95 % interval without its unit, or what it would need."""
    if missing(row["saved_ms"]):
        return NONE
    if missing(row[low]) or missing(row[high]):
        return NEEDS_ROUNDS
    return f"{row[low]:.{decimals}f} to {row[high]:.{decimals}f}"


def intervals(row: pd.Series[Any]) -> tuple[str, str, str]:
    """The intervals of speedup, saved (ms) and reduction (%)."""
    return (
        interval(row, "speedup_low", "speedup_high", 4),
        interval(row, "saved_low_ms", "saved_high_ms", 6),
        interval(row, "reduction_low_pct", "reduction_high_pct", 1),
    )


def change(row: pd.Series[Any]) -> tuple[str, str, str]:
    """The effect with its sign, its interval, and the margin; with fitting decimals."""
    if missing(row["effect_pct"]):
        return NONE, NONE, NONE
    low, high = row["effect_low_pct"], row["effect_high_pct"]
    between = f"needs {ROUNDS_FOR_VERDICT} rounds"
    if not missing(low) and not missing(high):
        between = f"{low:+.2f} to {high:+.2f} %"
    margin = NONE if missing(row["margin_pct"]) else f"{row['margin_pct']:g} %"
    return f"{row['effect_pct']:+.2f} %", between, margin


def why_inconclusive(row: pd.Series[Any]) -> str:
    """Why a row's verdict is inconclusive, in one clause; empty for any other verdict."""
    if row["verdict"] != "inconclusive":
        return ""
    if missing(row["effect_pct"]):
        return "the file says so"
    if row["withheld"]:
        return str(row["withheld"])
    if missing(row["effect_low_pct"]) or missing(row["effect_high_pct"]):
        rounds = 1 if missing(row["rounds"]) else row["rounds"]
        counted = "1 round" if rounds == 1 else f"{rounds} rounds"
        if rounds >= ROUNDS_FOR_VERDICT:
            return f"{row['rounds_left_out']} rounds were left out, more than the {counted} counted"
        return f"{counted}, and a verdict needs {ROUNDS_FOR_VERDICT}"
    _, between, margin = change(row)
    return f"the change lies between {between.replace(' to ', ' and ')}, the margin is {margin}"


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


def warnings(frame: pd.DataFrame, names: list[str]) -> list[str]:
    """What a reader must know before believing the numbers; `names` says which row is meant."""
    found = []

    def which(flags: Iterable[Any]) -> str:
        hit = [name for name, flag in zip(names, flags, strict=True) if flag]
        return "" if len(hit) == len(names) else f" ({', '.join(hit)})"

    different = [verdict == "different" for verdict in frame["verdict"]]
    if any(different):
        found.append(f"The outputs differ: no timing is reported{which(different)}.")
    partial = [not missing(value) and bool(value) for value in frame["partial"]]
    if any(partial):
        found.append(f"Partial: interrupted, only the finished rounds are counted{which(partial)}.")
    fallen_back = [not missing(value) and value < 100 for value in frame["dispatched_pct"]]
    if any(fallen_back):
        found.append(
            "Not every timed step took the fast path; the others fell back to vLLM's own"
            f"{which(fallen_back)}."
        )
    alone = [not missing(value) and not value for value in frame["compared"]]
    if any(alone):
        found.append(
            f"No worktree was compared with: the installed vLLM was timed as it is{which(alone)}."
        )
    unknown = [missing(value) for value in frame["equal"]]
    if any(unknown):
        found.append(f"Whether the outputs were equal is not stated{which(unknown)}.")
    reasons = [why_inconclusive(row) for _, row in frame.iterrows()]
    found.extend(
        f"Inconclusive{f' ({name})' if len(names) > 1 else ''}: {reason}."
        for name, reason in zip(names, reasons, strict=True)
        if reason
    )
    found.extend(machine_warnings(frame, which))
    if any(reasons):
        found.append(
            "What to do: stop other work on the machine, raise --budget, leave out --rounds or "
            "give more, and run again."
        )
    return found


def notes_section(frame: pd.DataFrame, names: list[str]) -> list[Section]:
    """The `warnings` as a section of their own, where there are any."""
    notes = tuple(warnings(frame, names))
    return [Section("Notes", notes=notes)] if notes else []


def _facts(row: pd.Series[Any], group: str) -> tuple[tuple[str, ...], ...]:
    names = [name for name, column in BY_NAME.items() if column.group == group]
    names = [name for name in names if name != "clock" and not missing(row[name])]
    return tuple((label(name), with_unit(name, row[name])) for name in names)


def with_unit(name: str, value: Any) -> str:
    """As `shown`, with the unit of whole numbers too."""
    column = BY_NAME.get(name)
    text = shown(name, value)
    unit = column.unit if column and column.kind == "int" else ""
    return f"{text} {unit}" if unit and text != NONE and label(name) != unit else text


def _figures(row: pd.Series[Any]) -> Section:
    speedup, saved, reduction = intervals(row)
    rows = [
        (FORMULAS["baseline"], milliseconds(row["baseline_ms"], " ms"), ""),
        (FORMULAS["drift"], percent(row["drift_pct"], 2), ""),
        (FORMULAS["speedup"], ratio(row["speedup"]), speedup),
        (FORMULAS["saved"], milliseconds(row["saved_ms"], " ms"), saved),
        (FORMULAS["reduction"], percent(row["reduction_pct"], 1), reduction),
    ]
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
            (str(row["clock"]) or "unknown", str(row["verdict"]), *change(row))
            for _, row in frame.iterrows()
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


def run_sections(frame: pd.DataFrame) -> list[Section]:
    """Everything about one run, whose clocks are the rows of `frame`."""
    first = frame.iloc[0]
    machine = _facts(first, "environment")
    sections = []
    settings = _facts(first, "setting")
    identity = tuple((label(n), str(first[n])) for n in ("run", "started") if not missing(first[n]))
    if settings or identity:
        sections.append(Section("Run", ("setting", "value"), identity + settings, left=2))
    sections.append(
        Section(
            "Machine and versions",
            ("what", "value") if machine else (),
            machine,
            left=2,
            notes=() if machine else ("Not stated in the file.",),
        )
    )
    state = state_rows(first)
    if state:
        header = ("state", "before", "after")
        sections.append(Section("Machine while it timed", header, state, 3, state_notes(first)))
    timed = frame[frame["verdict"] != "different"]
    if len(timed):
        sections.append(_verdicts(timed))
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
    clock_names = [str(clock) or "unknown clock" for clock in frame["clock"]]
    return sections + notes_section(frame, clock_names)

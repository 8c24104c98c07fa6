"""One cell of a row as a reader wants it: with its unit, its decimals, and what is unknown."""

from __future__ import annotations

from typing import Any

import pandas as pd

from bench_prep.measure.statistics import ROUNDS_FOR_INTERVAL, cumulative_saving_ms
from bench_prep.measure.verdict import CONFIDENCE, ROUNDS_FOR_VERDICT
from bench_prep.results.schema import BY_NAME, VERDICT_SINCE

#: Lengths of the requests whose saving is shown, in output tokens.
OUTPUT_TOKENS = (128, 512, 1024, 2048, 4096)
CONFIDENT = f"{100 * CONFIDENCE:g} % interval"
NEEDS_ROUNDS = f"needs {ROUNDS_FOR_INTERVAL} rounds"
NONE = "-"
#: What stands beside a verdict that follows from another rule than today's.
OLD_RULE = "old rule"
#: The clock of a row that stands for both, because there is no device.
HOST_IS_READY = "host = ready"

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


def with_unit(name: str, value: Any) -> str:
    """As `shown`, with the unit of whole numbers too."""
    column = BY_NAME.get(name)
    text = shown(name, value)
    unit = column.unit if column and column.kind == "int" else ""
    return f"{text} {unit}" if unit and text != NONE and label(name) != unit else text


def is_by_old_rule(row: pd.Series[Any]) -> bool:
    """Whether a row's verdict was made before there were intervals of the change."""
    old = not missing(row["schema"]) and row["schema"] < VERDICT_SINCE
    return bool(old and row["verdict"] != "different")


def said(row: pd.Series[Any]) -> str:
    """The verdict, with a mark where it follows from another rule than today's."""
    return f"{row['verdict']} ({OLD_RULE})" if is_by_old_rule(row) else str(row["verdict"])


def together(frame: pd.DataFrame) -> pd.DataFrame:
    """Of a run without a device one row for host and ready time, if its figures are the same.

    The row is the host's, and its clock `HOST_IS_READY`.
    """
    results = [name for name, column in BY_NAME.items() if column.group == "result"]
    frame = frame.reset_index(drop=True)
    twins: dict[int, int] = {}
    for _, rows in frame[(frame["platform"] == "cpu") & (frame["run"] != "")].groupby("run"):
        found = [list(rows.index[rows["clock"] == clock]) for clock in ("host", "ready")]
        if [len(indices) for indices in found] == [1, 1]:
            host, ready = found[0][0], found[1][0]
            if frame.loc[host, results].equals(frame.loc[ready, results]):
                twins[host] = ready
    frame.loc[list(twins), "clock"] = HOST_IS_READY
    return frame.drop(index=list(twins.values())).reset_index(drop=True)

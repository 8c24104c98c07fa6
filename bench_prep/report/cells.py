"""One cell of a row as a reader wants it: with its unit, its decimals, and what is unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench_prep.measure.statistics import ROUNDS_FOR_INTERVAL, cumulative_saving_ms
from bench_prep.measure.verdict import CONFIDENCE, ROUNDS_FOR_VERDICT
from bench_prep.results.row import BY_NAME, VERDICT_SINCE, Row

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
    """Whether a cell is empty: None or an empty text."""
    return value is None or value == ""


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


def cumulative(row: Row) -> list[str]:
    """The saving in ms over requests of `OUTPUT_TOKENS` tokens, to a microsecond."""
    if row.saved_ms is None:
        return [NONE] * len(OUTPUT_TOKENS)
    return [f"{cumulative_saving_ms(tokens, row.saved_ms):.3f}" for tokens in OUTPUT_TOKENS]


def _interval(row: Row, low: float | None, high: float | None, decimals: int) -> str:
    """A 95 % interval without its unit, or what it would need."""
    if row.saved_ms is None:
        return NONE
    if low is None or high is None:
        return NEEDS_ROUNDS
    return f"{low:.{decimals}f} to {high:.{decimals}f}"


def intervals(row: Row) -> tuple[str, str, str]:
    """The intervals of speedup, saved (ms) and reduction (%)."""
    return (
        _interval(row, row.speedup_low, row.speedup_high, 4),
        _interval(row, row.saved_low_ms, row.saved_high_ms, 6),
        _interval(row, row.reduction_low_pct, row.reduction_high_pct, 1),
    )


def change(row: Row) -> tuple[str, str, str]:
    """The effect with its sign, its interval, and the margin; with fitting decimals."""
    if row.effect_pct is None:
        return NONE, NONE, NONE
    low, high = row.effect_low_pct, row.effect_high_pct
    between = f"needs {ROUNDS_FOR_VERDICT} rounds"
    if low is not None and high is not None:
        between = f"{low:+.2f} to {high:+.2f} %"
    margin = NONE if row.margin_pct is None else f"{row.margin_pct:g} %"
    return f"{row.effect_pct:+.2f} %", between, margin


def with_unit(name: str, value: Any) -> str:
    """As `shown`, with the unit of whole numbers too."""
    column = BY_NAME.get(name)
    text = shown(name, value)
    unit = column.unit if column and column.kind == "int" else ""
    return f"{text} {unit}" if unit and text != NONE and label(name) != unit else text


def is_by_old_rule(row: Row) -> bool:
    """Whether a row's verdict was made before there were intervals of the change."""
    return row.schema is not None and row.schema < VERDICT_SINCE and row.verdict != "different"


def said(row: Row) -> str:
    """The verdict, with a mark where it follows from another rule than today's."""
    return f"{row.verdict} ({OLD_RULE})" if is_by_old_rule(row) else row.verdict


_RESULTS = tuple(name for name, column in BY_NAME.items() if column.group == "result")


def together(rows: Sequence[Row]) -> list[Row]:
    """Of a run without a device one row for host and ready time, if its figures are the same.

    The row is the host's, and its clock `HOST_IS_READY`.
    """
    by_run: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.platform == "cpu" and row.run and row.clock in ("host", "ready"):
            by_run[row.run].append(row)
    joined: dict[int, Row | None] = {}
    for pair in by_run.values():
        host, ready = min(pair, key=lambda row: row.clock), max(pair, key=lambda row: row.clock)
        if len(pair) == 2 and host.clock != ready.clock and _alike(host, ready):
            joined |= {id(host): replace(host, clock=HOST_IS_READY), id(ready): None}
    return [kept for row in rows if (kept := joined.get(id(row), row)) is not None]


def _alike(one: Row, other: Row) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _RESULTS)

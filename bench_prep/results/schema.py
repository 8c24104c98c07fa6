"""The result CSV: its version, and every column with its kind, unit and meaning.

The columns that docs/results.md calls stable keep their names for good. Adding, removing or
changing a column needs a new `VERSION`; the versions before it stay readable, and what they lack is
unknown.

1  the first one
2  `worktree_diff_sha256`, `against_...`
3  `effect_...`, `margin_pct` and the verdict that follows from them; `budget_s`, `slices`,
   `stopped_by`, `rounds_left_out`; `clock_cost_ns`, and the machine's state with what is doubtful
4  `floor_ns`
5  `model_config_sha256`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

VERSION = 5
#: The first version whose verdicts follow from the interval of the change.
VERDICT_SINCE = 3
#: The versions that `report` reads. Rows are only ever added to a file of `VERSION`.
READABLE = (1, 2, 3, 4, 5)

Kind = Literal["int", "float", "bool", "text"]
#: setting: chosen by the user; environment: the machine, the versions, the proof;
#: result: measured or derived; identity: which run and when.
Group = Literal["identity", "setting", "result", "environment"]


@dataclass(frozen=True)
class Column:
    """One column: `unit` is empty where there is none; `since` is the first version with it."""

    name: str
    kind: Kind
    group: Group
    unit: str
    meaning: str
    since: int = 1


def _blocks() -> list[Column]:
    columns = []
    for block, text in (
        ("baseline_before", "vLLM's own preparation before the candidate"),
        ("candidate", "the preparation under test"),
        ("baseline_after", "vLLM's own preparation after the candidate"),
    ):
        columns.append(Column(f"{block}_ms", "float", "result", "ms", f"{text}: median step"))
        columns.extend(
            Column(f"{block}_p{p}_ms", "float", "result", "ms", f"{text}: {p}th percentile")
            for p in (5, 95, 99)
        )
    return columns


COLUMNS: tuple[Column, ...] = (
    Column("schema", "int", "identity", "", f"version of these columns, {VERSION}"),
    Column("run", "text", "identity", "", "identifier of the run; its clocks share it"),
    Column("started", "text", "identity", "UTC, ISO 8601", "when the run started"),
    Column("partial", "bool", "identity", "", "interrupted: only the finished rounds are here"),
    Column("clock", "text", "setting", "", "host, ready, device or step"),
    Column("position", "int", "setting", "tokens", "tokens already computed for the request"),
    Column("block_sizes", "text", "setting", "tokens", "one KV block size per KV group"),
    Column("max_model_len", "int", "setting", "tokens", "longest request of the runner"),
    Column("max_num_reqs", "int", "setting", "requests", "largest batch of the runner"),
    Column("max_num_tokens", "int", "setting", "tokens", "most tokens in one step of the runner"),
    Column("mrope", "bool", "setting", "", "the model has multimodal rotary positions"),
    Column("prompt_embeds", "bool", "setting", "", "prompt embeddings are enabled"),
    Column("candidate", "text", "setting", "", "module:attribute of the preparation under test"),
    Column(
        "model_config_sha256", "text", "setting", "", "config.json of the engine's model", since=5
    ),
    Column("warmup", "int", "setting", "steps", "untimed steps before each block"),
    Column("iters", "int", "setting", "steps", "timed steps of each block"),
    Column("slices", "int", "setting", "slices", "interleaved parts of each block", since=3),
    Column("margin_pct", "float", "setting", "%", "a difference up to this is none", since=3),
    Column("budget_s", "float", "setting", "s", "the timing's time; empty: no limit", since=3),
    Column("rounds", "int", "result", "rounds", "finished A/B/A rounds; figures are medians of"),
    Column("rounds_left_out", "int", "result", "rounds", "other rounds, not counted", since=3),
    Column("withheld", "text", "result", "", "why the interval's verdict is none", since=3),
    Column(
        "preempted_pct",
        "float",
        "result",
        "%",
        "timed steps from which the kernel took the processor: in no median, in all percentiles",
        since=3,
    ),
    Column("left_out_because", "text", "result", "", "why, and how many rounds each", since=3),
    Column("stopped_by", "text", "result", "", "width, budget, rounds or interrupted", since=3),
    Column(
        "clock_cost_ns", "int", "result", "ns", "what the clock shows of an empty step", since=3
    ),
    Column("floor_ns", "int", "result", "ns", "the same of one launch of a tiny kernel", since=4),
    *_blocks(),
    Column("baseline_ms", "float", "result", "ms", "min(baseline_before, baseline_after)"),
    Column("drift_pct", "float", "result", "%", "|baseline_before - baseline_after| / baseline"),
    Column("speedup", "float", "result", "ratio", "baseline / candidate"),
    Column("speedup_low", "float", "result", "ratio", "lower end of its 95 % interval"),
    Column("speedup_high", "float", "result", "ratio", "upper end of its 95 % interval"),
    Column("saved_ms", "float", "result", "ms", "baseline - candidate"),
    Column("saved_low_ms", "float", "result", "ms", "lower end of its 95 % interval"),
    Column("saved_high_ms", "float", "result", "ms", "upper end of its 95 % interval"),
    Column("reduction_pct", "float", "result", "%", "1 - candidate / baseline"),
    Column("reduction_low_pct", "float", "result", "%", "lower end of its 95 % interval"),
    Column("reduction_high_pct", "float", "result", "%", "upper end of its 95 % interval"),
    Column("effect_pct", "float", "result", "%", "candidate / mean baseline - 1", since=3),
    Column("effect_low_pct", "float", "result", "%", "lower end of its 99.8 % interval", since=3),
    Column("effect_high_pct", "float", "result", "%", "upper end of its 99.8 % interval", since=3),
    Column("tpot_ms", "float", "setting", "ms", "the service's time per output token, as given"),
    Column("share_of_tpot_pct", "float", "result", "%", "saved / TPOT"),
    Column("equal", "bool", "result", "", "every buffer was identical to the twin's"),
    Column("verdict", "text", "result", "", "faster, slower, same, inconclusive or different"),
    Column("doubts", "text", "result", "", "what makes it doubtful (and what to do)", since=3),
    Column("unknown_state", "text", "result", "", "what of the state was not readable", since=3),
    Column("machine_state", "text", "result", "JSON", "before and after the rounds", since=3),
    Column(
        "compared", "bool", "environment", "", "the installed package was compared to a worktree"
    ),
    Column("equality_steps", "int", "environment", "steps", "steps whose whole state was compared"),
    Column("boundaries_crossed", "int", "environment", "blocks", "block boundaries in those steps"),
    Column(
        "drawn_steps", "int", "environment", "steps", "drawn while timed, compared too", since=3
    ),
    Column("seed", "int", "environment", "", "drew the requests and those steps", since=3),
    Column("dispatched_pct", "float", "environment", "%", "timed steps that the fast path took"),
    Column("device_name", "text", "environment", "", "the device that the runner used"),
    Column("driver", "text", "environment", "", "the device's driver"),
    Column("platform", "text", "environment", "", "vLLM's platform: cpu, cuda, rocm"),
    Column("cpu_model", "text", "environment", "", "the host's processor"),
    Column("vllm_version", "text", "environment", "", "the timed vLLM"),
    Column("vllm_commit", "text", "environment", "", "the worktree's commit"),
    Column("worktree_dirty", "bool", "environment", "", "the worktree has uncommitted changes"),
    Column(
        "worktree_diff_sha256",
        "text",
        "environment",
        "",
        "the files that are not as in the commit, or in the release where there is no commit",
        since=2,
    ),
    Column("tree_sha256", "text", "environment", "", "everything that enters the build"),
    Column("wheel_sha256", "text", "environment", "", "the installed wheel"),
    Column("key_sources_sha256", "text", "environment", "", "the compared source files"),
    Column(
        "against_commit", "text", "environment", "", "the baseline's worktree: its commit", since=2
    ),
    Column(
        "against_worktree_dirty", "bool", "environment", "", "it has uncommitted changes", since=2
    ),
    Column(
        "against_worktree_diff_sha256", "text", "environment", "", "its files that differ", since=2
    ),
    Column("against_tree_sha256", "text", "environment", "", "all that enters its build", since=2),
    Column("against_wheel_sha256", "text", "environment", "", "its wheel", since=2),
    Column("against_key_sources_sha256", "text", "environment", "", "its key sources", since=2),
    Column("fastpath_sha256", "text", "environment", "", "our fast path's source files"),
    Column("torch_version", "text", "environment", "", "PyTorch"),
    Column("triton_version", "text", "environment", "", "Triton"),
    Column("python_version", "text", "environment", "", "the timing interpreter"),
    Column("bench_prep_version", "text", "environment", "", "this program"),
    Column("command", "text", "environment", "", "the command that made the row"),
)

BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
NAMES: tuple[str, ...] = tuple(BY_NAME)
ENVIRONMENT: tuple[str, ...] = tuple(c.name for c in COLUMNS if c.group == "environment")

#: The columns from which a foreign file's figures are derived.
BLOCK_COLUMNS: tuple[str, ...] = ("baseline_before_ms", "candidate_ms", "baseline_after_ms")

_BOOLEANS = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
}


def parse(kind: Kind, value: Any) -> Any:
    """One cell as its kind; None where it is empty.

    Raises:
        ValueError: the value is not of this kind.
    """
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return None
    text = str(value).strip()
    if not text:
        return None
    if kind == "bool":
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"'{text}' is neither true nor false")
        return _BOOLEANS[text.lower()]
    if kind == "int":
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"'{text}' is not a whole number") from None
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"'{text}' is not a number") from None
    return str(value)


_DTYPES: dict[Kind, str] = {"int": "Int64", "float": "float64", "bool": "boolean", "text": "object"}


def frame_of(records: list[dict[str, Any]], extra: tuple[str, ...] = ()) -> pd.DataFrame:
    """Records of parsed cells as a table with all columns, in order, then the `extra` text ones.

    Missing numbers are NaN or NA, missing texts are empty.
    """
    data: dict[str, pd.Series[Any]] = {}
    for column in COLUMNS:
        values = [record.get(column.name) for record in records]
        if column.kind == "text":
            values = ["" if value is None else value for value in values]
        data[column.name] = pd.Series(values, dtype=_DTYPES[column.kind])
    for name in extra:
        data[name] = pd.Series([str(r.get(name, "")) for r in records], dtype="object")
    return pd.DataFrame(data)


def environment_record(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment columns of a row, parsed; those that are not given are None.

    Raises:
        ValueError: a name that is not an environment column, or a value of the wrong kind.
    """
    unknown = sorted(set(environment) - set(ENVIRONMENT))
    if unknown:
        raise ValueError(f"not environment columns: {', '.join(unknown)}")
    record = {}
    for name in ENVIRONMENT:
        try:
            value = parse(BY_NAME[name].kind, environment.get(name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        # One row stays one line of the file.
        record[name] = " ".join(value.splitlines()) if isinstance(value, str) else value
    return record

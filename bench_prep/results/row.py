"""A row of `run` and `engine`: one clock of one run, as it is made, shown, kept and read again.

Each field is a column of the result CSV, described beside it. Those that docs/results.md calls
stable keep their names for good. Adding, removing or changing a column needs a new `VERSION`; the
versions before it stay readable, and what they lack is unknown.

1  the first one
2  `worktree_diff_sha256`, `against_...`
3  `effect_...`, `margin_pct` and the verdict that follows from them; `budget_s`, `slices`,
   `stopped_by`, `rounds_left_out`; `clock_cost_ns`, and the machine's state with what is doubtful
4  `floor_ns`
5  `model_config_sha256`
6  `checked_steps`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench_prep.results.schema import Column, columns_of, number, parse, text

VERSION = 6
#: The first version whose verdicts follow from the interval of the change.
VERDICT_SINCE = 3
#: The versions that `report` reads. Rows are only ever added to a file of `VERSION`.
READABLE = tuple(range(1, VERSION + 1))


@dataclass(frozen=True)
class Row:
    """Unknown numbers are None, unknown texts empty; `extra` has columns that are not ours."""

    schema: int | None = number("identity", "", "version of these columns")
    run: str = text("identity", "", "identifier of the run; its clocks share it")
    started: str = text("identity", "UTC, ISO 8601", "when the run started")
    partial: bool | None = number("identity", "", "interrupted: only the finished rounds are here")
    clock: str = text("setting", "", "host, ready, device or step")
    position: int | None = number("setting", "tokens", "tokens already computed for the request")
    block_sizes: str = text("setting", "tokens", "one KV block size per KV group")
    max_model_len: int | None = number("setting", "tokens", "longest request of the runner")
    max_num_reqs: int | None = number("setting", "requests", "largest batch of the runner")
    max_num_tokens: int | None = number(
        "setting", "tokens", "most tokens in one step of the runner"
    )
    mrope: bool | None = number("setting", "", "the model has multimodal rotary positions")
    prompt_embeds: bool | None = number("setting", "", "prompt embeddings are enabled")
    candidate: str = text("setting", "", "module:attribute of the preparation under test")
    model_config_sha256: str = text("setting", "", "config.json of the engine's model", since=5)
    warmup: int | None = number("setting", "steps", "untimed steps before each block")
    iters: int | None = number("setting", "steps", "timed steps of each block")
    slices: int | None = number("setting", "slices", "interleaved parts of each block", since=3)
    margin_pct: float | None = number("setting", "%", "a difference up to this is none", since=3)
    budget_s: float | None = number("setting", "s", "the timing's time; empty: no limit", since=3)
    rounds: int | None = number("result", "rounds", "finished A/B/A rounds; figures are medians of")
    rounds_left_out: int | None = number("result", "rounds", "other rounds, not counted", since=3)
    withheld: str = text("result", "", "why the interval's verdict is none", since=3)
    preempted_pct: float | None = number(
        "result",
        "%",
        "timed steps from which the kernel took the processor: in no median, in all percentiles",
        since=3,
    )
    left_out_because: str = text("result", "", "why, and how many rounds each", since=3)
    stopped_by: str = text("result", "", "width, budget, rounds or interrupted", since=3)
    clock_cost_ns: int | None = number(
        "result", "ns", "what the clock shows of an empty step", since=3
    )
    floor_ns: int | None = number(
        "result", "ns", "the same of one launch of a tiny kernel", since=4
    )
    baseline_before_ms: float | None = number(
        "result", "ms", "vLLM's own preparation before the candidate: median step"
    )
    baseline_before_p5_ms: float | None = number(
        "result", "ms", "vLLM's own preparation before the candidate: 5th percentile"
    )
    baseline_before_p95_ms: float | None = number(
        "result", "ms", "vLLM's own preparation before the candidate: 95th percentile"
    )
    baseline_before_p99_ms: float | None = number(
        "result", "ms", "vLLM's own preparation before the candidate: 99th percentile"
    )
    candidate_ms: float | None = number("result", "ms", "the preparation under test: median step")
    candidate_p5_ms: float | None = number(
        "result", "ms", "the preparation under test: 5th percentile"
    )
    candidate_p95_ms: float | None = number(
        "result", "ms", "the preparation under test: 95th percentile"
    )
    candidate_p99_ms: float | None = number(
        "result", "ms", "the preparation under test: 99th percentile"
    )
    baseline_after_ms: float | None = number(
        "result", "ms", "vLLM's own preparation after the candidate: median step"
    )
    baseline_after_p5_ms: float | None = number(
        "result", "ms", "vLLM's own preparation after the candidate: 5th percentile"
    )
    baseline_after_p95_ms: float | None = number(
        "result", "ms", "vLLM's own preparation after the candidate: 95th percentile"
    )
    baseline_after_p99_ms: float | None = number(
        "result", "ms", "vLLM's own preparation after the candidate: 99th percentile"
    )
    baseline_ms: float | None = number("result", "ms", "min(baseline_before, baseline_after)")
    drift_pct: float | None = number("result", "%", "|baseline_before - baseline_after| / baseline")
    speedup: float | None = number("result", "ratio", "baseline / candidate")
    speedup_low: float | None = number("result", "ratio", "lower end of its 95 % interval")
    speedup_high: float | None = number("result", "ratio", "upper end of its 95 % interval")
    saved_ms: float | None = number("result", "ms", "baseline - candidate")
    saved_low_ms: float | None = number("result", "ms", "lower end of its 95 % interval")
    saved_high_ms: float | None = number("result", "ms", "upper end of its 95 % interval")
    reduction_pct: float | None = number("result", "%", "1 - candidate / baseline")
    reduction_low_pct: float | None = number("result", "%", "lower end of its 95 % interval")
    reduction_high_pct: float | None = number("result", "%", "upper end of its 95 % interval")
    effect_pct: float | None = number("result", "%", "candidate / mean baseline - 1", since=3)
    effect_low_pct: float | None = number(
        "result", "%", "lower end of its 99.8 % interval", since=3
    )
    effect_high_pct: float | None = number(
        "result", "%", "upper end of its 99.8 % interval", since=3
    )
    tpot_ms: float | None = number("setting", "ms", "the service's time per output token, as given")
    share_of_tpot_pct: float | None = number("result", "%", "saved / TPOT")
    equal: bool | None = number("result", "", "every buffer was identical to the twin's")
    verdict: str = text("result", "", "faster, slower, same, inconclusive or different")
    doubts: str = text("result", "", "what makes it doubtful (and what to do)", since=3)
    unknown_state: str = text("result", "", "what of the state was not readable", since=3)
    machine_state: str = text("result", "JSON", "before and after the rounds", since=3)
    compared: bool | None = number(
        "environment", "", "the installed package was compared to a worktree"
    )
    equality_steps: int | None = number(
        "environment", "steps", "steps whose whole state was compared"
    )
    boundaries_crossed: int | None = number(
        "environment", "blocks", "block boundaries in those steps"
    )
    drawn_steps: int | None = number(
        "environment", "steps", "drawn while timed, compared too", since=3
    )
    checked_steps: int | None = number(
        "environment", "steps", "timed steps whose writes were compared between the arms", since=6
    )
    seed: int | None = number("environment", "", "drew the requests and those steps", since=3)
    dispatched_pct: float | None = number("environment", "%", "timed steps that the fast path took")
    device_name: str = text("environment", "", "the device that the runner used")
    driver: str = text("environment", "", "the device's driver")
    platform: str = text("environment", "", "vLLM's platform: cpu, cuda, rocm")
    cpu_model: str = text("environment", "", "the host's processor")
    vllm_version: str = text("environment", "", "the timed vLLM")
    vllm_commit: str = text("environment", "", "the worktree's commit")
    worktree_dirty: bool | None = number("environment", "", "the worktree has uncommitted changes")
    worktree_diff_sha256: str = text(
        "environment",
        "",
        "the files that are not as in the commit, or in the release where there is no commit",
        since=2,
    )
    tree_sha256: str = text("environment", "", "everything that enters the build")
    wheel_sha256: str = text("environment", "", "the installed wheel")
    key_sources_sha256: str = text("environment", "", "the compared source files")
    against_commit: str = text("environment", "", "the baseline's worktree: its commit", since=2)
    against_worktree_dirty: bool | None = number(
        "environment", "", "it has uncommitted changes", since=2
    )
    against_worktree_diff_sha256: str = text("environment", "", "its files that differ", since=2)
    against_tree_sha256: str = text("environment", "", "all that enters its build", since=2)
    against_wheel_sha256: str = text("environment", "", "its wheel", since=2)
    against_key_sources_sha256: str = text("environment", "", "its key sources", since=2)
    fastpath_sha256: str = text("environment", "", "our fast path's source files")
    torch_version: str = text("environment", "", "PyTorch")
    triton_version: str = text("environment", "", "Triton")
    python_version: str = text("environment", "", "the timing interpreter")
    bench_prep_version: str = text("environment", "", "this program")
    command: str = text("environment", "", "the command that made the row")
    extra: Mapping[str, str] = field(default_factory=dict)

    def cell(self, name: str) -> Any:
        """A column by its name, for what treats all columns alike; "" where there is none."""
        return getattr(self, name) if name in BY_NAME else self.extra.get(name, "")


COLUMNS: tuple[Column, ...] = columns_of(Row)
BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
NAMES: tuple[str, ...] = tuple(BY_NAME)
ENVIRONMENT: tuple[Column, ...] = tuple(c for c in COLUMNS if c.group == "environment")
#: Those that the rows of other commands have too.
SHARED_ENVIRONMENT = tuple(column for column in ENVIRONMENT if column.since < 6)

#: The columns from which a foreign file's figures are derived.
BLOCK_COLUMNS: tuple[str, ...] = ("baseline_before_ms", "candidate_ms", "baseline_after_ms")


def columns_named(*names: str) -> tuple[Column, ...]:
    """Columns that rows of other commands have too."""
    return tuple(BY_NAME[name] for name in names)


def environment_record(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment columns of a row, parsed; those that are not given are not there.

    Raises:
        ValueError: a name that is not an environment column, or a value of the wrong kind.
    """
    unknown = sorted(set(environment) - {column.name for column in ENVIRONMENT})
    if unknown:
        raise ValueError(f"not environment columns: {', '.join(unknown)}")
    record = {}
    for name, given in environment.items():
        try:
            value = parse(BY_NAME[name].kind, given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if value is not None:
            record[name] = " ".join(value.splitlines()) if isinstance(value, str) else value
    return record

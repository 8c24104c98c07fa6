"""The CSV of `bench-prep serve`: one row per tier and metric; and every request, beside it."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from bench_prep.results.row import SHARED_ENVIRONMENT, columns_named
from bench_prep.results.schema import described, require_columns
from bench_prep.results.table import Table
from bench_prep.serve.answers import ARMS, Answer, Answers, percentiles_ms, tokens_per_s
from bench_prep.serve.figures import METRICS, Judged, Limits, TierResult, correct, together

#: Of one arm: `baseline_before_ms` is the median.
OF_METRIC = ("ms", "p95_ms", "p99_ms")
_ARMS = ",".join(f"{arm}_{{0}}" for arm in ARMS)
_SERVICE = described(
    "setting",
    """
    model text - that is served
    url text - of a server that was there already
    requests int requests of each tier
    output_tokens int tokens of each answer, at most
    """,
)
_LIMITS = described(
    "setting",
    """
    sla_ttft_ms,sla_tpot_ms float ms the service level
    """,
)
_TIER = described(
    "result",
    """
    tier text tokens lengths of its prompts
    metric text - ttft, tpot, itl or latency
    """
    + "".join(f"{_ARMS.format(name)} float ms of each arm\n" for name in OF_METRIC)
    + f"""
    drift_pct float % between the two baselines
    speedup float ratio baseline / candidate
    reduction_pct float % 1 - candidate / baseline
    saved_ms,saved_low_ms,saved_high_ms float ms mean of the baselines - candidate, its interval
    effect_pct,effect_low_pct,effect_high_pct float % the change, with its 99.8 % interval
    verdict text - faster, slower, same, inconclusive or different
    refused text - why the interval's verdict is none
    {_ARMS.format("tokens")} int tokens generated
    {_ARMS.format("tokens_per_s")} float 1/s generated
    {_ARMS.format("together_pct")} float % tokens that came with others
    {_ARMS.format("sla_met")} int requests within the service level
    {_ARMS.format("correct")} int requests with the exact answer
    {_ARMS.format("others_busy")} float processors that other work kept busy
    equal bool - the answers are identical, token by token
    first_difference,baselines_differ text - where they are not
    logprob_difference,baselines_logprob_difference float - the largest one
    lengths text - how long the answers are
    decode_steps,dispatched int steps of the servers, and of the fast path
    not_used text - why the fast path was not used
    predicted_ms float ms what another result says that a token saves
    prediction text - whether it agrees
    """,
)
_PARTIAL = described("identity", "problem text - what ended the comparison early")
COLUMNS = (
    *columns_named("schema", "run", "started", "partial"), *_PARTIAL, *_SERVICE,
    *columns_named("max_model_len", "margin_pct"), *_LIMITS, *_TIER, *SHARED_ENVIRONMENT,
)  # fmt: skip
TABLE = Table("bench-prep serve", COLUMNS, 2)

#: Arm -> tier -> answers; an arm that was not finished is not there.
Arms = Mapping[str, Mapping[str, Answers]]


def rows(
    arms: Arms,
    results: Mapping[str, TierResult],
    limits: Limits,
    common: Mapping[str, Any],
    of_tier: Mapping[str, Mapping[str, Any]],
) -> pd.DataFrame:
    """One row per tier and metric; without a tier's result the finished arms' figures alone.

    `common` has the columns that all rows share, `of_tier` those of a tier's decisive metric.

    Raises:
        ValueError: a column that is not one of `COLUMNS`.
    """
    made = []
    tiers = dict.fromkeys(tier for found in arms.values() for tier in found)
    for tier in tiers:
        result = results.get(tier)
        shared = {"schema": TABLE.version, **common, "tier": tier}
        if result is not None:
            shared |= {
                "equal": not result.difference and not result.unstable,
                "first_difference": result.difference,
                "baselines_differ": result.unstable,
                "logprob_difference": result.logprobs,
                "baselines_logprob_difference": result.own_logprobs,
            }
        for arm, found in arms.items():
            shared |= _arm_cells(arm, found[tier].timed, limits)
            if (beside := found[tier].other_work) is not None:
                shared[f"{arm}_others_busy"] = round(beside.busy, 2)
        for metric in METRICS:
            cells = dict(shared, metric=metric)
            for arm, found in arms.items():
                values = percentiles_ms(values_of(metric, found[tier].timed))
                cells |= {
                    f"{arm}_{name}": round(value, 6)
                    for name, value in zip(OF_METRIC, values, strict=True)
                }
            if result is not None and metric in result.metrics:
                cells |= judged_cells(result.metrics[metric])
            made.append(cells | of_tier.get(metric, {}).get(tier, {}))
    require_columns({name for one in made for name in one}, COLUMNS)
    return pd.DataFrame(made, columns=list(TABLE.names))


def values_of(metric: str, answers: tuple[Answer, ...]) -> list[float]:
    """In seconds: one value per request, of inter-token latencies all of them."""
    if metric == "itl":
        return [value for one in answers for value in one.itl]
    values = [METRICS[metric](one) for one in answers]
    return [value for value in values if value == value]


def _arm_cells(arm: str, answers: tuple[Answer, ...], limits: Limits) -> dict[str, Any]:
    return {
        f"{arm}_tokens": sum(len(one.tokens) for one in answers),
        f"{arm}_tokens_per_s": round(tokens_per_s(answers), 3),
        f"{arm}_together_pct": round(100 * together(answers), 3),
        f"{arm}_sla_met": limits.met(answers),
        f"{arm}_correct": correct(answers),
    }


def judged_cells(judged: Judged) -> dict[str, Any]:
    """The columns of a metric's verdict."""
    effect, figures = judged.effect, judged.figures

    def pct(value: float | None) -> float | None:
        return None if value is None else round(100 * value, 3)

    def ms(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "drift_pct": pct(figures.drift.median),
        "speedup": round(figures.speedup.median, 4),
        "reduction_pct": pct(figures.reduction.median),
        "saved_ms": ms(judged.saved_ms),
        "saved_low_ms": ms(judged.saved_low_ms),
        "saved_high_ms": ms(judged.saved_high_ms),
        "effect_pct": pct(effect.value),
        "effect_low_pct": pct(effect.low),
        "effect_high_pct": pct(effect.high),
        "verdict": judged.verdict,
        "refused": judged.refused,
    }


def requests_path(path: Path, run_id: str) -> Path:
    """Where the requests of a run go: beside its CSV, with the run in the name."""
    return path.with_name(f"{path.stem}.{run_id}.requests.jsonl.gz")


def requests_text(arms: Arms) -> bytes:
    """Every request as one gzipped JSON line; times in seconds, request 0 is the warm-up."""
    lines = []
    for arm, tiers in arms.items():
        for tier, answers in tiers.items():
            for number, one in enumerate(answers.all):
                record = {"arm": arm, "tier": tier, "request": number, **asdict(one)}
                record["logprobs"] = [v if math.isfinite(v) else None for v in one.logprobs]
                lines.append(json.dumps(record) + "\n")
    return gzip.compress("".join(lines).encode(), mtime=0)

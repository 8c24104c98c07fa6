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

from bench_prep.results.rows_file import RowsFile
from bench_prep.results.schema import ENVIRONMENT
from bench_prep.serve.answers import ARMS, Answer, Answers, percentiles_ms, tokens_per_s
from bench_prep.serve.figures import METRICS, Judged, Limits, TierResult, correct, together

SCHEMA = 2
SETTINGS = (
    "model", "url", "requests", "output_tokens", "max_model_len", "margin_pct",
    "sla_ttft_ms", "sla_tpot_ms",
)  # fmt: skip
#: Of one arm: `baseline_before_ms` is the median.
OF_METRIC = ("ms", "p95_ms", "p99_ms")
OF_ARM = ("tokens", "tokens_per_s", "together_pct", "sla_met", "correct", "others_busy")
JUDGED = (
    "drift_pct", "speedup", "reduction_pct", "saved_ms", "saved_low_ms", "saved_high_ms",
    "effect_pct", "effect_low_pct", "effect_high_pct", "verdict", "refused",
)  # fmt: skip
OF_TIER = (
    "equal", "first_difference", "baselines_differ", "logprob_difference",
    "baselines_logprob_difference", "lengths", "decode_steps", "dispatched", "not_used",
    "predicted_ms", "prediction",
)  # fmt: skip
COLUMNS = (
    "schema", "run", "started", "partial", "problem", *SETTINGS, "tier", "metric",
    *(f"{arm}_{name}" for name in OF_METRIC for arm in ARMS), *JUDGED,
    *(f"{arm}_{name}" for name in OF_ARM for arm in ARMS), *OF_TIER, *ENVIRONMENT,
)  # fmt: skip

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
        shared = {"schema": SCHEMA, **common, "tier": tier}
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
    if unknown := sorted({name for one in made for name in one} - set(COLUMNS)):
        raise ValueError(f"not columns: {', '.join(unknown)}")
    return pd.DataFrame(made, columns=list(COLUMNS))


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
    """The columns `JUDGED`."""
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


FILE = RowsFile("bench-prep serve", COLUMNS, SCHEMA)

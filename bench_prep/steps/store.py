"""The CSV of `bench-prep steps`: one row per part and arm; and its trace, beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench_prep.results.rows_file import RowsFile
from bench_prep.results.schema import ENVIRONMENT
from bench_prep.steps.frames import WORK, Arm, Part
from bench_prep.steps.limits import device_parts, most_saved, waiting
from bench_prep.steps.result import Found

SCHEMA = 1
_US = 1000.0
#: The row of whole steps, with the probes and without, and what the device does not do.
STEP, PLAIN, IDLE = "step", "step without probes", "idle"
#: Times are in microseconds, `_pct` columns in per cent of the step with the probes.
FIGURES = (
    "steps", "median_us", "p5_us", "p95_us", "share_pct", "most_saved_us", "most_saved_pct",
)  # fmt: skip
OF_ARM = (
    "records_per_step", "record_ns", "probe_cost_counted_pct", "probe_cost_pct",
    "probe_cost_low_pct", "probe_cost_high_pct", "waits",
)  # fmt: skip
OF_RUN = (
    "prompt_tokens", "max_model_len", "eager", "rounds", "stretch", "effect_pct",
    "effect_low_pct", "effect_high_pct", "verdict",
)  # fmt: skip
COLUMNS = (
    "schema", "run", "started", "model", *OF_RUN, "arm", "part", "where", "kind", *FIGURES,
    *OF_ARM, *ENVIRONMENT,
)  # fmt: skip


def figures(arm: Arm, part: Part, most: float | None) -> dict[str, Any]:
    """The columns `FIGURES` of one part."""
    p5, median, p95 = (float(value) for value in np.percentile(part.times, [5, 50, 95]))
    return {
        "steps": len(part.times),
        "median_us": round(median / _US, 3),
        "p5_us": round(p5 / _US, 3),
        "p95_us": round(p95 / _US, 3),
        "share_pct": round(100 * median / arm.step, 3),
        "most_saved_us": None if most is None else round(most / _US, 3),
        "most_saved_pct": None if most is None else round(100 * most / arm.step, 3),
    }


def parts_of(arm: Arm) -> list[tuple[Part, float | None]]:
    """All rows of an arm in their order, each with the most that it could save, in ns."""
    rows: list[tuple[Part, float | None]] = [
        (Part(STEP, "", WORK, arm.steps), None),
        (Part(PLAIN, "", WORK, arm.plain), None),
    ]
    rows += [(part, most_saved(arm, part)) for part in (*arm.parts, *device_parts(arm))]
    if arm.device is not None:
        times = np.maximum(0, round(arm.step) - arm.device.occupied)
        rows.append((Part(IDLE, "device", "wait", times), None))
    return rows


def rows(found: Found, common: Mapping[str, Any]) -> pd.DataFrame:
    """One row per arm and part; `common` has the columns that all rows share.

    Raises:
        ValueError: `common` has a column that is not one of `COLUMNS`.
    """
    if unknown := sorted(set(common) - set(COLUMNS)):
        raise ValueError(f"not columns: {', '.join(unknown)}")

    def pct(value: float | None) -> float | None:
        return None if value is None else round(100 * value, 3)

    shared = {"schema": SCHEMA, **common}
    if found.change is not None:
        effect = found.change.effect
        shared |= {
            "effect_pct": pct(effect.value),
            "effect_low_pct": pct(effect.low),
            "effect_high_pct": pct(effect.high),
            "verdict": found.change.verdict,
        }
    made = []
    for arm in found.arms:
        cost = found.costs[arm.name]
        of_arm = {
            "arm": arm.name,
            "records_per_step": round(arm.records, 2),
            "record_ns": round(max(found.record_ns), 1),
            "probe_cost_counted_pct": pct(cost.counted),
            "probe_cost_pct": pct(cost.measured.value),
            "probe_cost_low_pct": pct(cost.measured.low),
            "probe_cost_high_pct": pct(cost.measured.high),
            "waits": waiting(arm),
        }
        for part, most in parts_of(arm):
            of_part = {"part": part.name, "where": part.where, "kind": part.kind}
            made.append(shared | of_arm | of_part | figures(arm, part, most))
    return pd.DataFrame(made, columns=list(COLUMNS))


def trace_path(path: Path, run_id: str) -> Path:
    """Where the trace of a run goes: beside its CSV, with the run in the name."""
    return path.with_name(f"{path.stem}.{run_id}.trace.json")


FILE = RowsFile("bench-prep steps", COLUMNS, SCHEMA)

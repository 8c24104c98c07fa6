"""The CSV of `bench-prep steps`: one row per part and arm; and its trace, beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench_prep.results.row import SHARED_ENVIRONMENT, columns_named
from bench_prep.results.schema import described, require_columns
from bench_prep.results.table import Table
from bench_prep.steps.frames import WORK, Arm, Part
from bench_prep.steps.limits import device_parts, most_saved, waiting
from bench_prep.steps.result import Found

_US = 1000.0
#: The row of whole steps, with the probes and without, and what the device does not do.
STEP, PLAIN, IDLE = "step", "step without probes", "idle"
_MODEL = described("setting", "model text - of which the engine is")
_WORK = described(
    "setting",
    """
    prompt_tokens int tokens of the request
    max_model_len int tokens longest request of the engine
    eager bool - without compilation and CUDA graphs
    rounds int rounds that are recorded
    stretch int steps of each stretch
    """,
)
_CHANGE = described(
    "result",
    """
    effect_pct,effect_low_pct,effect_high_pct float % by the fast path, with its 99.8 % interval
    verdict text - faster, slower, same or inconclusive
    """,
)
_PART = described(
    "result",
    """
    arm text - which preparation the steps have
    part text - of the step
    where text - on which thread, process or device it is
    kind text - work or wait
    steps int steps of which the times are
    median_us,p5_us,p95_us float us of the part in each of them
    share_pct float % the median's, of the step with the probes
    most_saved_us float us what the step loses at most if the part takes no time
    most_saved_pct float % the same, of the step with the probes
    records_per_step float - of the probes
    record_ns float ns what one record costs
    probe_cost_counted_pct float % of the step: the records' cost
    probe_cost_pct,probe_cost_low_pct,probe_cost_high_pct float % steps with probes against others
    waits text - who waits for whom
    """,
)
COLUMNS = (
    *columns_named("schema", "run", "started"), *_MODEL, *_WORK, *_CHANGE, *_PART,
    *SHARED_ENVIRONMENT,
)  # fmt: skip
TABLE = Table("bench-prep steps", COLUMNS, 1)


def figures(arm: Arm, part: Part, most: float | None) -> dict[str, Any]:
    """The columns of one part's times."""
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
    require_columns(common, COLUMNS)

    def pct(value: float | None) -> float | None:
        return None if value is None else round(100 * value, 3)

    shared = {"schema": TABLE.version, **common}
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
    return pd.DataFrame(made, columns=list(TABLE.names))


def trace_path(path: Path, run_id: str) -> Path:
    """Where the trace of a run goes: beside its CSV, with the run in the name."""
    return path.with_name(f"{path.stem}.{run_id}.trace.json")

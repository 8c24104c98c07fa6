"""The timing process of a sweep: all its runners, proved equal point by point, then timed.

Started by `provenance.launch` in an empty folder. Its events, in order: `imported`, `state`,
`left_out` and `equal` of the points, `proved`, one `round` per point and lap, `stopped`, `done`; or
`error`.
"""

from __future__ import annotations

from typing import Any

from bench_prep.candidate.findable import require_findable
from bench_prep.child.channel import emit
from bench_prep.child.job import do_job
from bench_prep.decode.bring_up import bring_up, environment
from bench_prep.decode.events import State
from bench_prep.decode.imported import check_imported, import_vllm
from bench_prep.settings import RunSettings
from bench_prep.sweep.axes import points_of
from bench_prep.sweep.laps import Budget


def _work(job: dict[str, Any]) -> None:
    reference = RunSettings(**job["reference"])
    points = points_of(job["axes"], job["points"], reference)
    version = import_vllm(job["package_dir"])
    from bench_prep.sweep.trial import guarded, time_points

    require_findable(reference.candidate)
    # The platform's faults are the reference's; a point's own are that point's.
    first = bring_up(reference, version, job, 2)
    emit(State(environment(version, first[0])))
    budget = Budget(job["budget_s"])
    guards = guarded(points, reference, first, budget, emit)
    time_points(points, guards, reference, job["margin"], budget, emit)


if __name__ == "__main__":
    do_job(_work, check_imported)

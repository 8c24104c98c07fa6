"""The timing process: proves the candidate equal, times it, and sends what it finds.

Started by `provenance.launch` in an empty folder. Its events, in order: `imported`, `floor` of a
device, `state`, `equal`, one `round` per finished round, `stopped`, `done`; or `error`.
"""

from __future__ import annotations

from typing import Any

from bench_prep.candidate.findable import require_findable
from bench_prep.child.channel import emit
from bench_prep.child.job import do_job
from bench_prep.decode.bring_up import bring_up, environment
from bench_prep.decode.events import State
from bench_prep.decode.imported import check_imported, import_vllm
from bench_prep.run.events import Floor
from bench_prep.settings import RunSettings


def _work(job: dict[str, Any]) -> None:
    settings = RunSettings(**job["settings"])
    version = import_vllm(job["package_dir"])
    from bench_prep.decode.steps import Workload, use_once
    from bench_prep.measure.clocks import CudaDevice, launch_floor
    from bench_prep.run.session import Guard, try_candidate

    require_findable(settings.candidate)
    runners = bring_up(settings, version, job, 2)
    for runner in runners:
        use_once(runner, Workload.make(settings, runner.inputs_embeds_size, runner.dtype))
    if runners[0].device.type != "cpu":
        # First, because a first graph brings more of torch into being.
        emit(Floor(launch_floor(CudaDevice(runners[0].device.index))))
    guard = Guard(*runners)  # before anything of the candidate runs
    emit(State(environment(version, runners[0])))
    try_candidate(settings, guard, emit)


if __name__ == "__main__":
    do_job(_work, check_imported)

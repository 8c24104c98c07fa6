"""The timing process: proves the candidate equal, times it, and sends what it finds.

Started by `provenance.launch` in an empty folder. Its events, in order: `imported`, `state`,
`equal`, one `round` per finished round, `stopped`, `done`; or `error`.
"""

from __future__ import annotations

from typing import Any

from bench_prep.bringup import bring_up, do_job, environment, import_vllm
from bench_prep.candidate import (
    DispatchedShare,
    VllmCode,
    attach,
    load_factory,
    own_errors,
    require_dispatched,
    require_findable,
)
from bench_prep.provenance.child import emit
from bench_prep.settings import RunSettings


def _work(job: dict[str, Any]) -> None:
    settings = RunSettings(**job["settings"])
    version = import_vllm(job["package_dir"])
    import torch

    from bench_prep.decode.equality import compare, prove_equal
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.decode.stretches import stretches
    from bench_prep.measure.clocks import CudaDevice, clock_cost
    from bench_prep.measure.comparison import taking
    from bench_prep.measure.plan import Samples, Timing
    from bench_prep.measure.records import Arm
    from bench_prep.measure.state import state_reader
    from bench_prep.measure.watch import Watch

    require_findable(settings.candidate)
    baseline_runner, runner = bring_up(settings, version, job, 2)
    code = VllmCode()  # before anything of the candidate runs
    own_path = baseline_runner._prepare_inputs
    candidate = attach(settings.candidate, load_factory(settings.candidate), runner)
    code.require_untouched(settings.candidate)
    emit({"event": "state", "environment": environment(version, baseline_runner)})

    def workload(position: int, last: int | None = None) -> Workload:
        changed = settings.model_copy(update={"position": position})
        return Workload.make(changed, baseline_runner.inputs_embeds_size, runner.dtype, last)

    work = workload(settings.position)
    baseline = Decoder(baseline_runner, work, own_path)
    other = Decoder(runner, work, candidate)
    walked = stretches(settings.position, work.last_position, settings.block_sizes)
    with own_errors(settings.candidate, other):
        proof = prove_equal(baseline, other, [workload(part[0], part[-1]) for part in walked])
    require_dispatched(candidate)
    emit({"event": "equal", "steps": proof.steps, "boundaries": proof.boundaries})

    for decoder in (baseline, other):
        decoder.workload = work
        decoder.reserve_tokens(settings.warmup + settings.iters + 2)
    device = None if runner.device.type == "cpu" else CudaDevice(runner.device.index)
    share = DispatchedShare(candidate)

    watch = Watch(state_reader(runner.device))
    slices = taking(baseline, other, device, watch.disturbances)

    def take(arm: Arm, warmup: int, iters: int) -> Samples:
        share.mark()
        samples = slices(arm, warmup, iters)
        if arm == "candidate":
            share.add((warmup + iters) * (1 if device is None else 2))
        return samples

    timing = Timing(take, settings.method)
    with torch.inference_mode(), own_errors(settings.candidate, other):
        emit({"event": "clock_cost", "ns": clock_cost(device)})
        for number, one in enumerate(timing.rounds(watch.left_out), start=1):
            compare(baseline, other, f"after round {number}")
            code.require_untouched(settings.candidate)
            emit(
                {
                    "event": "round",
                    "round": one.to_json(),
                    "dispatched_pct": share.percent(),
                    "slices": timing.slices,
                    "span": watch.span and watch.span.to_json(),
                }
            )
    emit({"event": "stopped", "by": timing.stopped_by})


if __name__ == "__main__":
    do_job(_work)

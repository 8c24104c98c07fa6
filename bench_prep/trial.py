"""One candidate against vLLM's own preparation, in one process: proved equal, then timed.

All that the proof and the clock run is imported with this module: make the guard behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench_prep.candidate import (
    DispatchedShare,
    attach,
    load_factory,
    own_errors,
    require_dispatched,
)
from bench_prep.decode.drawn import DrawnChecks
from bench_prep.decode.draws import repeatable
from bench_prep.decode.equality import compare, prove_equal, require_apart
from bench_prep.decode.poison import Poison
from bench_prep.decode.steps import Decoder, Workload
from bench_prep.decode.stretches import stretches
from bench_prep.guard import Guard
from bench_prep.measure.clocks import CudaDevice, clock_cost
from bench_prep.measure.comparison import taking
from bench_prep.measure.plan import Timing
from bench_prep.measure.records import Arm, Samples
from bench_prep.measure.state import state_reader
from bench_prep.measure.watch import Watch
from bench_prep.settings import RunSettings

__all__ = ["Guard", "try_candidate"]
Send = Callable[[dict[str, Any]], None]


def try_candidate(settings: RunSettings, guard: Guard, send: Send) -> None:
    """Load the candidate, prove it equal on the guarded runner, and time it.

    `guard` was made before anything of the candidate has run. The events that go to `send`:
    `equal`, `clock_cost`, one `round` per finished round, `stopped`. Everything that a run draws
    comes from one seed: unless the settings have one, it is new, and made once the candidate has
    been loaded, so that the candidate cannot know it.

    Raises:
        OutputsDiffer: the states differ, in the proof or at a drawn step of a timed block.
        UsageError: the candidate cannot be loaded, raises, or does more than its own work.
        Missing: it left every step to vLLM's own path.
    """
    name = settings.candidate
    baseline_runner, runner = guard.runners
    own_path = baseline_runner._prepare_inputs
    candidate = attach(name, load_factory(name), runner)
    guard.require_code(name)
    seed = int.from_bytes(os.urandom(4)) if settings.seed is None else settings.seed

    def workload(position: int, last: int | None = None) -> Workload:
        changed = settings.model_copy(update={"position": position})
        hidden = baseline_runner.inputs_embeds_size
        return Workload.make(changed, hidden, runner.dtype, last, seed)

    work = workload(settings.position)
    baseline, other = Decoder(baseline_runner, work, own_path), Decoder(runner, work, candidate)
    walked = stretches(settings.position, work.last_position, settings.block_sizes)
    with torch.inference_mode(), own_errors(name, other), repeatable(seed):
        proof = prove_equal(baseline, other, [workload(part[0], part[-1]) for part in walked])
        require_dispatched(candidate)
        guard.require(name)
        for decoder in (baseline, other):
            decoder.workload = work
        poison = Poison.find(baseline, other)
        checks = DrawnChecks(baseline, other, poison, work, seed, partial(guard.require, name))
        device = None if runner.device.type == "cpu" else CudaDevice(runner.device.index)
        guard.integrity.watch(baseline=baseline, candidate=other, checks=checks, poison=poison)
        send({"event": "equal", "steps": proof.steps, "boundaries": proof.boundaries, "seed": seed})
        send({"event": "clock_cost", "ns": clock_cost(device)})
        share = DispatchedShare(candidate)
        watch = Watch(state_reader(runner.device))
        slices = taking(baseline, other, device, watch.disturbances)

        def take(arm: Arm, warmup: int, iters: int) -> Samples:
            decoder = other if arm == "candidate" else baseline
            checks.begin(arm, warmup + iters, 1 if device is None else 2)
            share.mark()
            taken = decoder.taken
            with guard.threads.listening():
                samples = slices(arm, warmup, iters)
            if decoder is other:
                share.add(decoder.taken - taken)
            guard.moved.add(arm, decoder.processor_ns, decoder.counted)
            return samples

        timing = Timing(take, settings.method)
        for number, one in enumerate(timing.rounds(watch.left_out), start=1):
            compare(baseline, other, f"after round {number}")
            require_apart(baseline, other)
            guard.require(name)
            guard.moved.require_saved(f"--candidate {name}", one)
            send(
                {
                    "event": "round",
                    "round": one.to_json(),
                    "dispatched_pct": share.percent(),
                    "slices": timing.slices,
                    "span": watch.span and watch.span.to_json(),
                    "drawn_steps": checks.compared,
                }
            )
    send({"event": "stopped", "by": timing.stopped_by})

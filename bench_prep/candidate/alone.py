"""How long vLLM's own preparation takes before anything of a candidate has run.

A candidate may slow the baseline only while nobody looks, and undo it for every look; that the
baseline has become slower cannot be undone.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import numpy as np
import torch

from bench_prep.decode.steps import Decoder, Workload
from bench_prep.errors import Inconclusive
from bench_prep.measure.clocks import CudaDevice, time_block
from bench_prep.measure.records import Block, Round
from bench_prep.measure.verdict import CONFIDENCE, walsh_interval
from bench_prep.settings import RunSettings

#: So many times as long: more than what a busy machine or a cache that is shared does as a rule.
SLOWED = 2.0
#: Rounds that count before anything is said.
ROUNDS = 5
_SLICES, _WARMUP, _STEPS = 5, 20, 100


class Alone:
    """The fastest of some slices of vLLM's own preparation; made before a candidate is loaded.

    Both `runners` of a pair take them: what they leave is the same then.
    """

    def __init__(self, settings: RunSettings, runners: tuple[Any, Any]) -> None:
        self._ns = min(_slices_ns(settings, runner) for runner in runners)
        self._logs: list[float] = []

    def require_kept(self, one: Round) -> None:
        """After each round: beside the candidate the baseline is not much slower than alone.

        What counts is the centre over the rounds, as in the verdict: who spares some rounds has
        nothing of them.

        Raises:
            Inconclusive: after `ROUNDS` rounds or more it takes over `SLOWED` times as long.
        """
        before, _, after = one.blocks
        # The baseline of the verdict: who slows one of its blocks alone has half of the gain.
        baseline_ns = math.sqrt(_ready_ns(before) * _ready_ns(after))
        if not one.left_out and math.isfinite(baseline_ns):
            self._logs.append(math.log(baseline_ns))
        if len(self._logs) < ROUNDS or not math.isfinite(self._ns):
            return
        beside_ns = math.exp(walsh_interval(np.array(self._logs), CONFIDENCE)[0])
        if beside_ns > SLOWED * self._ns:
            raise Inconclusive(
                f"vLLM's own preparation takes {beside_ns / 1e6:.3f} ms a step beside the "
                f"candidate, and took {self._ns / 1e6:.3f} ms before it was loaded",
                "quieten the machine and run again; if it stays, the candidate slows it: put the "
                "change into a worktree and use --against",
            )


def _slices_ns(settings: RunSettings, runner: Any) -> float:
    """The median step of the fastest slice."""
    work = Workload.make(settings, runner.inputs_embeds_size, runner.dtype)
    decoder = Decoder(runner, work, runner._prepare_inputs)
    decoder.reserve_tokens(_WARMUP + _STEPS + 2)
    device = None if runner.device.type == "cpu" else CudaDevice(runner.device.index)
    taken = []
    with torch.inference_mode():
        for _ in range(_SLICES):
            samples = time_block(decoder, warmup=_WARMUP, iters=_STEPS, device=device)
            taken.append(_ready_ns(Block("baseline_before", samples)))
        decoder.end()
    return min(taken)


def _ready_ns(block: Block) -> float:
    """The median step; infinite where every one was preempted."""
    times = block.times("ready")
    return median(times) if times else math.inf

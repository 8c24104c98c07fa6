"""The two arms of one setting in this process: proved equal, and taken slice by slice.

All that the proof and the clock run is imported with this module: make the guard behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from bench_prep.candidate.drawn import DrawnChecks
from bench_prep.candidate.draws import Draws
from bench_prep.candidate.fold import EveryStep
from bench_prep.candidate.guard import Guard
from bench_prep.candidate.load import DispatchedShare, own_errors, require_dispatched
from bench_prep.candidate.poison import Poison
from bench_prep.decode.equality import EqualityProof, compare, prove_equal, require_apart
from bench_prep.decode.steps import Decoder, Workload
from bench_prep.measure.clocks import CudaDevice
from bench_prep.measure.comparison import taking
from bench_prep.measure.disturbances import Disturbances
from bench_prep.measure.records import Arm, Round, Samples
from bench_prep.settings import RunSettings


class Arms:
    """vLLM's own preparation on one of the guarded runners, the `candidate` on the other.

    Attributes:
        name: the candidate's, for messages.
        baseline, candidate: the two decoders.
        device: whose time is measured; None on the CPU platform.
    """

    def __init__(
        self,
        settings: RunSettings,
        guard: Guard,
        candidate: Callable[[Any, Any], Any],
        seed: int,
        disturbances: Callable[[Arm], Disturbances | None],
        *,
        few_checks: bool = False,
    ) -> None:
        """`seed` draws all requests, and the steps that are checked (`Draws`)."""
        self.name = settings.candidate
        self._settings = settings
        self._guard = guard
        self._seed = seed
        self._few_checks = few_checks
        self._prepare = candidate
        self._share = DispatchedShare(candidate)
        baseline_runner, runner = guard.runners
        work = self._workload(settings.position)
        self.baseline = Decoder(baseline_runner, work, baseline_runner._prepare_inputs)
        self.candidate = Decoder(runner, work, candidate)
        self.device = None if runner.device.type == "cpu" else CudaDevice(runner.device.index)
        self._slices = taking(self.baseline, self.candidate, self.device, disturbances)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """For all that takes steps: what the candidate raises is its author's to mend."""
        with torch.inference_mode(), own_errors(self.name, self.candidate):
            yield

    @property
    def last_position(self) -> int:
        """Of the timed request."""
        return self.baseline.workload.last_position

    def prove(self, stretches: Sequence[range]) -> EqualityProof:
        """The twins' whole states at these positions, and everything made ready for `take`.

        Raises:
            OutputsDiffer: they differ.
            UsageError: the candidate does more than its own work.
            Missing: it left every step to vLLM's own path.
        """
        work = self.baseline.workload
        walked = [self._workload(part[0], part[-1]) for part in stretches]
        proof = prove_equal(self.baseline, self.candidate, walked)
        require_dispatched(self._prepare)
        self._guard.require(self.name)
        for decoder in (self.baseline, self.candidate):
            decoder.workload = work
        self._poison = Poison.find(self.baseline, self.candidate)
        draws = Draws(self._seed, work.position, work.block_sizes, few=self._few_checks)
        look = partial(self._guard.require, self.name)
        self._every = EveryStep(self.baseline, self.candidate)
        self._checks = DrawnChecks(
            self.baseline, self.candidate, self._poison, self._every, work, draws, look
        )
        return proof

    @property
    def watched(self) -> dict[str, Any]:
        """The objects whose code is watched (`Integrity.watch`), once `prove` is done."""
        return {
            "baseline": self.baseline,
            "candidate": self.candidate,
            "checks": self._checks,
            "poison": self._poison,
            "every": self._every,
            "baseline_fold": self._every.baseline,
            "candidate_fold": self._every.candidate,
        }

    def take(self, arm: Arm, warmup: int, iters: int) -> Samples:
        """One slice (`plan.Take`), each of whose steps is that of the slice before.

        Raises:
            OutputsDiffer: one is not.
        """
        decoder = self.candidate if arm == "candidate" else self.baseline
        self._checks.begin(arm, warmup + iters, 1 if self.device is None else 2)
        self._share.mark()
        taken = decoder.taken
        with self._guard.threads.listening():
            samples = self._slices(arm, warmup, iters)
        self._every.require_equal(arm)
        if decoder is self.candidate:
            self._share.add(decoder.taken - taken)
        self._guard.moved.add(arm, decoder.processor_ns, decoder.counted)
        return samples

    def require_equal(self, when: str) -> None:
        """Between two rounds: the arms' states are the same, in memory of their own.

        Raises:
            OutputsDiffer: they are not.
        """
        compare(self.baseline, self.candidate, when)
        require_apart(self.baseline, self.candidate)

    def require_own_work(self) -> None:
        """Between two rounds: the candidate does nothing but its own work.

        Raises:
            UsageError: it does.
        """
        self._guard.require(self.name)

    def require_saved(self, one: Round) -> None:
        """After each round: what the candidate saves has not been moved out of its call.

        Raises:
            UsageError: most of it has.
        """
        self._guard.moved.require_saved(f"--candidate {self.name}", one)

    @property
    def compared(self) -> int:
        """Whole states that were compared at drawn steps."""
        return self._checks.compared

    @property
    def dispatched_pct(self) -> float | None:
        """Share of the candidate's steps that it prepared itself, where it counts them."""
        return self._share.percent()

    def _workload(self, position: int, last: int | None = None) -> Workload:
        changed = self._settings.model_copy(update={"position": position})
        runner = self._guard.runners[1]
        hidden = self._guard.runners[0].inputs_embeds_size
        return Workload.make(changed, hidden, runner.dtype, last, self._seed)

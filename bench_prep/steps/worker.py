"""What `bench-prep steps` asks of vLLM's worker, in the worker's own process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench_prep.engine.stretches import TimedWorker
from bench_prep.steps.device import clock_offset_ns
from bench_prep.steps.parts import FOLDER, SCOPES
from bench_prep.steps.probes import Probes
from bench_prep.steps.recorder import Switch, cost_ns
from bench_prep.steps.stretches import StepStretches, Stretch


class RecordedWorker(TimedWorker):
    """Methods for `LLM.collective_rpc`; vLLM adds them to its worker class."""

    def schedules_asynchronously(self) -> bool:
        """Whether the next step is scheduled before the token of the last one is there."""
        return bool(self.model_runner.use_async_scheduling)

    def record_cost_ns(self) -> tuple[float, float]:
        """Of `recorder.cost_ns`, in this process."""
        return cost_ns(Path(os.environ[FOLDER]))

    def begin_recording(
        self, stretches: list[dict[str, Any]], warmup: int, iters: int, fast: bool
    ) -> None:
        """From now on steps fill these stretches; `fast`: `begin_check` found the fast path."""
        folder = Path(os.environ[FOLDER])
        if not hasattr(self, "_probes"):
            self._probes = Probes(self.model_runner, folder, SCOPES)
        self._recording = StepStretches(
            self.model_runner,
            self._path if fast else None,
            self._probes,
            Switch(folder),
            [Stretch(**one) for one in stretches],
            warmup,
            iters,
        )

    def recording_filled(self) -> bool:
        """Whether no more steps are needed."""
        return self._recording.filled

    def end_recording(self) -> list[tuple[int, int]]:
        """The steps (`StepStretches.steps`); the engine is as it was before."""
        self._recording.close()
        return self._recording.steps

    def begin_profile(self) -> None:
        """Let torch's profiler record what the device does, and nothing of the host but calls."""
        from torch.profiler import ProfilerActivity, profile

        self._profile = profile(activities=[ProfilerActivity.CUDA])
        self._profile.start()

    def end_profile(self, file: str) -> int:
        """Write its Chrome trace; the Unix time at `perf_counter_ns` zero, in nanoseconds."""
        import torch

        torch.cuda.synchronize()
        self._profile.stop()
        self._profile.export_chrome_trace(file)
        del self._profile
        return clock_offset_ns()

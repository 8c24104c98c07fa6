"""One arm of `bench-prep run --against` in its own process: one worktree's runner, on command.

Its commands and what it answers, one event each (`run.events`):

    digests                     `Digests` of what is there now
    restart STRETCH             `Digests`: the request is put before the first step of a stretch
    save FILE CHECKED           `Obeyed`: everything that can be compared, for the other arm: as it
                                is now, or was at the CHECKED-th check of the last slice
    step                        `Digests` of one step, where the forward pass would read them
    clock_cost                  `ClockCost`
    slice WARMUP ITERS          `Slice`: its
        SEED DUE ROWS           requests are drawn by SEED, and the digests of the steps that are
                                DUE, one a pass, and of those after them come along, the
                                processor time of so many counted steps (`effort`), and
                                `digests` of all steps, with ROWS or not (`candidate.fold`)
    steps PATH                  `StepSums`: position and sum of each step of the last slice
    machine                     `Machine`
    locate PATH FILE CHECKED    `Located`: the difference to a file saved by the other arm
    check                       `Obeyed`: what was imported meanwhile was verified, too
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

from bench_prep.child.channel import commands, emit
from bench_prep.child.job import do_job
from bench_prep.decode.bring_up import bring_up, environment
from bench_prep.decode.imported import check_imported, import_vllm
from bench_prep.run.events import (
    ClockCost,
    Digests,
    Located,
    Machine,
    Obeyed,
    Ready,
    Slice,
    StepSums,
)
from bench_prep.settings import RunSettings


def _work(job: dict[str, Any]) -> None:
    # Before any other folder, so that this arm's vLLM is the one that is found; vLLM starts
    # interpreters of its own, too.
    sys.path.insert(0, job["site"])
    os.environ["PYTHONPATH"] = job["site"]
    settings = RunSettings(**job["settings"])
    version = import_vllm(job["package_dir"])
    import torch

    # Memory that vLLM allocates without filling it gets the same values in both processes.
    torch.use_deterministic_algorithms(True, warn_only=True)
    (runner,) = bring_up(settings, version, job, 1)
    torch.use_deterministic_algorithms(False)
    arm = _Arm(settings, runner, job)
    emit(Ready(environment(version, runner), arm.last_position))
    for command in commands():
        arm.obey(command)


class _Arm:
    """The runner in decode; what a step is given and returns counts as part of its state."""

    def __init__(self, settings: RunSettings, runner: Any, job: dict[str, Any]) -> None:
        from bench_prep.decode.steps import Decoder
        from bench_prep.measure.clocks import CudaDevice
        from bench_prep.measure.state import state_reader

        self._settings = settings
        self._job = job
        self._runner = runner
        self._decoder = Decoder(runner, self._workload(settings.position), runner._prepare_inputs)
        self._result: Any = None
        self._unbooked = False
        self._places: Any = {}
        self._checked: list[tuple[Digests, dict[str, Any]]] = []
        self._fold: Any = None
        self._device = None if runner.device.type == "cpu" else CudaDevice(runner.device.index)
        self._read_machine = state_reader(runner.device)

    @property
    def last_position(self) -> int:
        return self._decoder.workload.last_position

    def obey(self, command: dict[str, Any]) -> None:
        import torch

        with torch.inference_mode():
            emit(getattr(self, "_" + command.pop("do"))(**command))

    def _workload(self, position: int, last: int | None = None) -> Any:
        from bench_prep.decode.steps import Workload

        changed = self._settings.model_copy(update={"position": position})
        return Workload.make(changed, self._runner.inputs_embeds_size, self._runner.dtype, last)

    def _state(self, checked: int | None = None) -> dict[str, Any]:
        from bench_prep.decode.equality import state

        if checked is not None:
            return self._checked[checked][1]
        return state(self._decoder, self._result, every_path=True)

    def _digests(self, position: int | None = None) -> Digests:
        from bench_prep.snapshot import memory, moved

        known: dict[Any, str] = {}
        digests = {path: _digest(value, known) for path, value in self._state().items()}
        places = sorted(moved(self._places, self._runner))
        return Digests(digests, places, memory(self._runner), position)

    def _save(self, file: str, checked: int | None) -> Obeyed:
        import torch

        state = self._state(checked)
        torch.save({path: _storable(value) for path, value in state.items()}, file)
        return Obeyed()

    def _restart(self, stretch: list[int] | None) -> Digests:
        """`stretch`: first and last position of the proof's steps; None: the timed steps."""
        from bench_prep.snapshot import addresses

        self._book()
        settings = self._settings
        if stretch is None:
            self._decoder.workload = self._workload(settings.position)
            self._decoder.reserve_tokens(settings.warmup + settings.iters + 2)
        else:
            self._decoder.workload = self._workload(*stretch)
            self._decoder.reserve_tokens(stretch[1] - stretch[0] + 2)
        self._decoder.restart()
        self._result = None
        self._places = addresses(self._runner)
        return self._digests()

    def _step(self) -> Digests:
        self._book()
        self._result = self._decoder.prepare_step()
        self._unbooked = True  # until the next command, so that a difference can be located
        return self._digests()

    def _book(self) -> None:
        if self._unbooked:
            self._decoder.after()
            self._unbooked = False

    def at_each(self, decoder: Any) -> None:
        """Fold the step that has just been taken."""
        self._fold.add()

    def at_step(self, decoder: Any) -> None:
        """Keep what a step that is being timed has left, outside the clock (`decode.steps`)."""
        from bench_prep.decode.equality import copied

        self._result = decoder.result
        self._checked.append((self._digests(decoder.position), copied(self._state())))

    def after_step(self, decoder: Any) -> None:
        """Keep what one more step has left, and let the caches get warm again."""
        from bench_prep.candidate.drawn import settle

        decoder.prepare_step()
        self.at_step(decoder)
        decoder.book()
        settle(decoder)

    def _slice(self, warmup: int, iters: int, seed: int, due: list[int], rows: bool) -> Slice:
        from bench_prep.candidate.drawn import SETTLING
        from bench_prep.candidate.fold import Fold
        from bench_prep.measure.clocks import time_block
        from bench_prep.measure.disturbances import Disturbances

        self._book()
        self._checked.clear()
        self._places = {}  # the slices start the request anew
        decoder = self._decoder
        decoder.workload = self._workload(self._settings.position)
        decoder.reserve_tokens(warmup + iters + SETTLING + 2)
        if self._fold is None:
            self._fold = Fold(decoder)
        self._fold.begin(seed, (warmup + iters) * (1 if self._device is None else 2))
        decoder.begin(decoder.workload.requests(seed), self, due)
        disturbances = Disturbances()
        samples = time_block(
            decoder,
            warmup=warmup,
            iters=iters,
            device=self._device,
            disturbances=disturbances,
        )
        self._result = None
        return Slice(
            samples=samples,
            disturbances=disturbances.to_json(),
            checked=[digests for digests, _ in self._checked],
            digests=self._fold.digests(rows=rows),
            processor_ns=decoder.processor_ns,
            counted=decoder.counted,
        )

    def _steps(self, path: str) -> StepSums:
        return StepSums(self._fold.steps(path))

    def _clock_cost(self) -> ClockCost:
        from bench_prep.measure.clocks import clock_cost

        return ClockCost(clock_cost(self._device))

    def _machine(self) -> Machine:
        return Machine(self._read_machine())

    def _check(self) -> Obeyed:
        check_imported(self._job)
        return Obeyed()

    def _locate(self, path: str, file: str, checked: int | None) -> Located:
        import torch

        from bench_prep.snapshot import ABSENT, difference_at

        expected = torch.load(file, weights_only=False).get(path, ABSENT)
        difference = difference_at(
            path, expected, _storable(self._state(checked).get(path, ABSENT))
        )
        return Located(str(difference) if difference else path)


def _storable(value: Any) -> Any:
    """A copy on the host that the other process can read: classes of vLLM are only texts."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return value if isinstance(value, np.ndarray) else repr(value)


def _digest(value: Any, known: dict[Any, str]) -> str:
    """`known` holds the digests of memory that was reached by another path."""
    import numpy as np
    import torch

    array: Any
    if isinstance(value, torch.Tensor):
        key = (value.device.type, value.data_ptr(), value.shape, value.stride(), value.dtype)
        if key in known:
            return known[key]
        kind = f"{value.dtype} {tuple(value.shape)}"
        array = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif isinstance(value, np.ndarray):
        kind = f"{value.dtype} {value.shape}"
        array = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    else:
        return repr(value)
    digest = f"{kind} {hashlib.sha256(array).hexdigest()}"
    if isinstance(value, torch.Tensor):
        known[key] = digest
    return digest


if __name__ == "__main__":
    do_job(_work, check_imported)

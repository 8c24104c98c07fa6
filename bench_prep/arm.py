"""One arm of `bench-prep run --against` in its own process: one worktree's runner, on command.

Its commands and what it answers, one event each:

    digests                     `digests`: a digest or the text of everything that can be compared
    save FILE / load FILE       `ready`: the bytes of all buffers, written or taken over
    restart STRETCH             `ready`: the request is put before the first step of a stretch
    step                        `digests` of one step, where the forward pass would read them
    block                       `block`: the samples of one timed block, then `digests` of its end
    locate PATH FILE            `difference` to a file saved by the other arm
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from bench_prep.bringup import bring_up, do_job, environment, import_vllm
from bench_prep.provenance.child import commands, emit
from bench_prep.settings import RunSettings


def _work(job: dict[str, Any]) -> None:
    # Before any other folder, so that this arm's vLLM is the one that is found.
    sys.path.insert(0, job["site"])
    settings = RunSettings(**job["settings"])
    version = import_vllm(job["package_dir"])
    (runner,) = bring_up(settings, version, job, 1)
    arm = _Arm(settings, runner)
    emit(
        {
            "event": "state",
            "environment": environment(version, runner),
            "last_position": arm.last_position,
        }
    )
    for command in commands():
        arm.obey(command)


class _Arm:
    """The runner in decode; what a step is given and returns counts as part of its state."""

    def __init__(self, settings: RunSettings, runner: Any) -> None:
        from bench_prep.decode.steps import Decoder
        from bench_prep.measure.clocks import CudaDevice

        self._settings = settings
        self._runner = runner
        self._decoder = Decoder(runner, self._workload(settings.position), runner._prepare_inputs)
        self._result: Any = None
        self._places: dict[str, int] = {}
        self._device = None if runner.device.type == "cpu" else CudaDevice(runner.device.index)

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

    def _state(self) -> dict[str, Any]:
        from bench_prep.decode.snapshot import leaves

        self._decoder.synchronize()
        state = dict(leaves(self._runner))
        state |= {f"argument{path}": value for path, value in leaves(self._decoder.arguments)}
        state |= {f"returned value{path}": value for path, value in leaves(self._result)}
        return state

    def _digests(self) -> dict[str, Any]:
        from bench_prep.decode.snapshot import moved

        digests = {path: _digest(value) for path, value in self._state().items()}
        return {
            "event": "digests",
            "digests": digests,
            "moved": sorted(moved(self._places, self._runner)),
        }

    def _save(self, file: str) -> dict[str, Any]:
        import torch

        torch.save({path: _storable(value) for path, value in self._state().items()}, file)
        return {"event": "ready"}

    def _load(self, file: str) -> dict[str, Any]:
        """Take over the bytes of memory that vLLM allocates without filling it."""
        import numpy as np
        import torch

        saved = torch.load(file, weights_only=False)
        for path, value in self._state().items():
            other = saved.get(path)
            if not hasattr(value, "shape") or not hasattr(other, "shape"):
                continue
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
                if value.shape == other.shape and value.dtype == other.dtype:
                    value.copy_(other)
            elif isinstance(value, np.ndarray) and value.shape == other.shape:
                value[...] = other
        return {"event": "ready"}

    def _restart(self, stretch: list[int] | None) -> dict[str, Any]:
        """`stretch`: first and last position of the proof's steps; None: the timed steps."""
        from bench_prep.decode.snapshot import addresses

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
        return {"event": "ready"}

    def _step(self) -> dict[str, Any]:
        self._result = self._decoder.prepare_step()
        digests = self._digests()
        self._decoder.after()
        return digests

    def _block(self) -> dict[str, Any]:
        from bench_prep.measure.clocks import time_block

        samples = time_block(
            self._decoder,
            warmup=self._settings.warmup,
            iters=self._settings.iters,
            device=self._device,
        )
        self._result = None
        self._places = {}  # the blocks start the request anew
        return self._digests() | {"event": "block", "samples": samples}

    def _locate(self, path: str, file: str) -> dict[str, Any]:
        import torch

        from bench_prep.decode.snapshot import ABSENT, difference_at

        expected = torch.load(file, weights_only=False).get(path, ABSENT)
        difference = difference_at(path, expected, _storable(self._state().get(path, ABSENT)))
        return {"event": "difference", "difference": str(difference) if difference else path}


def _storable(value: Any) -> Any:
    """A copy on the host, which the other process can read."""
    import torch

    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _digest(value: Any) -> str:
    import numpy as np
    import torch

    array: Any
    if isinstance(value, torch.Tensor):
        kind = f"{value.dtype} {tuple(value.shape)}"
        array = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif isinstance(value, np.ndarray):
        kind = f"{value.dtype} {value.shape}"
        array = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    else:
        return repr(value)
    return f"{kind} {hashlib.sha256(array).hexdigest()}"


if __name__ == "__main__":
    do_job(_work)

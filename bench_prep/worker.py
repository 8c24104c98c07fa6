"""The timing process: proves the candidate equal, times it, and sends what it finds.

Started by `provenance.launch` in an empty folder. Its events, in order: `imported`, `state`,
`equal`, one `block` per timed block, one `round` per finished round, `done`; or `error`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from bench_prep.candidate import (
    DispatchedShare,
    attach,
    load_factory,
    own_errors,
    require_dispatched,
)
from bench_prep.errors import REPORT_FAULT, BenchPrepError, Missing, NotTheWorktree
from bench_prep.provenance.child import emit, read_job
from bench_prep.settings import RunSettings


def main() -> None:
    """Do the job on standard input; the last event is `done` or `error`."""
    job = read_job()
    try:
        _run(RunSettings(**job["settings"]), job.get("package_dir"))
        emit({"event": "done"})
    except BenchPrepError as error:
        emit(
            {
                "event": "error",
                "exit_code": error.exit_code,
                "message": error.message,
                "remedy": error.remedy,
                "traceback": traceback.format_exc(),
            }
        )
    except Exception as error:
        traceback.print_exc()
        emit(
            {
                "event": "error",
                "exit_code": 1,
                "message": f"{type(error).__name__}: {error}",
                "remedy": REPORT_FAULT,
                "traceback": traceback.format_exc(),
            }
        )
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM and torch leave threads and process groups behind that only delay the exit.
    os._exit(0)


def _run(settings: RunSettings, package_dir: str | None) -> None:
    version = _import_vllm(package_dir)
    _check_torch(settings.device)
    import torch

    from bench_prep.decode.equality import compare, prove_equal, stretches
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.measure.clocks import CudaDevice
    from bench_prep.measure.plan import rounds

    factory = load_factory(settings.candidate)
    baseline_runner, runner = _make_runners(settings, version)
    _check_origin(package_dir)
    _check_platform(settings.device, runner.device.type)
    own_path = baseline_runner._prepare_inputs  # before a candidate can replace it in the class
    candidate = attach(settings.candidate, factory, runner)
    emit({"event": "state", "environment": _environment(version, baseline_runner)})

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

    def after_block(arm: str) -> None:
        if arm != "baseline_before":
            compare(baseline, other, f"after the timed block {arm}")
        if arm == "candidate":
            share.add((settings.warmup + settings.iters) * (1 if device is None else 2))
        else:
            share.mark()
        emit({"event": "block", "arm": arm})

    with torch.inference_mode(), own_errors(settings.candidate, other):
        share.mark()
        for one in rounds(
            baseline,
            other,
            count=settings.rounds,
            warmup=settings.warmup,
            iters=settings.iters,
            device=device,
            after_block=after_block,
        ):
            emit({"event": "round", "round": one.to_json(), "dispatched_pct": share.percent()})


def _import_vllm(package_dir: str | None) -> str:
    """Import vLLM and return its version; refuse any but the verified package."""
    if importlib.util.find_spec("vllm") is None:
        raise Missing(
            "vLLM is not installed in this environment",
            "run scripts/run_bench.sh, or give --worktree to build and install one",
        )
    try:
        import vllm
    except (ImportError, OSError) as error:
        raise Missing(
            f"vLLM cannot be imported ({type(error).__name__}: {error})",
            "repair the environment, or make a new one with scripts/run_bench.sh",
        ) from error

    origin = getattr(vllm, "__file__", None)
    if origin is None:
        raise NotTheWorktree(
            "vllm is a namespace package, without an __init__.py", "remove the stray vllm folder"
        )
    if package_dir is not None and Path(origin).resolve().parent != Path(package_dir).resolve():
        raise NotTheWorktree(
            f"Python imports vLLM from {Path(origin).parent}, not from the verified {package_dir}",
            "remove the other vllm from the environment's path",
        )
    emit({"event": "imported", "package_dir": str(Path(origin).parent)})
    return str(vllm.__version__)


def _check_origin(package_dir: str | None) -> None:
    """After the runner is made: every imported vLLM module is a file of the verified package."""
    if package_dir is None:
        return
    root = Path(package_dir).resolve()
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None) if name.startswith("vllm.") else None
        if origin and not Path(origin).resolve().is_relative_to(root):
            raise NotTheWorktree(
                f"{name} was imported from {origin}, not from the verified {package_dir}",
                "remove the other vllm from the environment's path",
            )


def _check_torch(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise Missing(
            "--device cuda: torch sees no CUDA or ROCm device",
            "use --device cpu, or install a torch build for the device",
        )


def _check_platform(device: str, found: str) -> None:
    """vLLM's build decides on the platform, whatever was asked for."""
    if device not in ("auto", found):
        raise Missing(
            f"--device {device}: the installed vLLM is a build for {found}",
            f"use --device {found}, or install a vLLM for {device}",
        )


def _make_runners(settings: RunSettings, version: str) -> list[Any]:
    from bench_prep.decode.runner import make_runners
    from bench_prep.fastpath.fingerprint import known_versions

    try:
        return make_runners(settings, 2)
    except BenchPrepError:
        raise
    except Exception as error:
        known = known_versions()
        if version.partition("+")[0] in known:
            raise
        raise Missing(
            f"vLLM {version} is not supported: its V1 runner cannot be brought up here "
            f"({type(error).__name__}: {error})",
            f"known to work: {', '.join(f'{v} ({platform})' for v, platform in known.items())}",
        ) from error


def _environment(version: str, runner: Any) -> dict[str, Any]:
    import torch

    from bench_prep.measure.machine import cpu_model, driver_version, triton_version

    cpu = runner.device.type == "cpu"
    hip = getattr(torch.version, "hip", None)
    return {
        "vllm_version": version,
        "torch_version": torch.__version__,
        "triton_version": triton_version(),
        "python_version": sys.version.split()[0],
        "platform": "cpu" if cpu else "rocm" if hip else "cuda",
        "device_name": cpu_model() if cpu else torch.cuda.get_device_name(runner.device),
        "driver": None if cpu else driver_version(),
        "cpu_model": cpu_model(),
    }


if __name__ == "__main__":
    main()

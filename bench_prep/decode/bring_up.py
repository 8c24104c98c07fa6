"""The runners of a timing process, and what is known of the machine that they are on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench_prep.decode.imported import check_imported
from bench_prep.errors import BenchPrepError, Missing
from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.settings import RunSettings


def bring_up(settings: RunSettings, version: str, job: dict[str, Any], count: int) -> list[Any]:
    """`count` equal runners of the verified package, whose `version` has been imported.

    Raises:
        NotTheWorktree: what was imported is not what was verified.
        Missing: no device, or a vLLM that is not supported.
    """
    _check_torch(settings.device)
    runners = _make_runners(settings, version, count)
    check_imported(job)
    _check_platform(settings.device, runners[0].device.type)
    return runners


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


def _make_runners(settings: RunSettings, version: str, count: int) -> list[Any]:
    from bench_prep.decode.runner import make_runners
    from bench_prep.fastpath.fingerprint import known_versions

    try:
        return make_runners(settings, count)
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


def environment(version: str, runner: Any) -> dict[str, Any]:
    """The environment columns that only the timing process knows."""
    import torch

    from bench_prep.measure.machine import cpu_model, driver_version, triton_version

    cpu = runner.device.type == "cpu"
    hip = getattr(torch.version, "hip", None)
    return {
        "vllm_version": version,
        "torch_version": str(torch.__version__),
        "triton_version": triton_version(),
        "python_version": sys.version.split()[0],
        "platform": "cpu" if cpu else "rocm" if hip else "cuda",
        "device_name": cpu_model() if cpu else torch.cuda.get_device_name(runner.device),
        "driver": None if cpu else driver_version(),
        "cpu_model": cpu_model(),
        "fastpath_sha256": fastpath_sha256(),
    }


def fastpath_sha256() -> str:
    """The hash of the fast path's files, its known sources and architectures among them."""
    folder = Path(__file__).parent.with_name("fastpath")
    files = [path for path in folder.iterdir() if path.suffix in (".py", ".json")]
    return combined_sha256({path.name: file_sha256(path) for path in files})

"""What every timing process does first: the verified vLLM, its runners, and how it ends."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from bench_prep.errors import REPORT_FAULT, BenchPrepError, Missing, NotTheWorktree
from bench_prep.provenance.bytecode import compile_from_source, compiled_sha256
from bench_prep.provenance.child import emit, read_job
from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.settings import RunSettings


def do_job(work: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Do `work` with the job on standard input; the last event is `done` or `error`."""
    job = read_job()
    try:
        work(job)
        if "package_dir" in job:  # else an engine's own processes imported vLLM, not this one
            check_imported(job)  # what a step imports, too
        emit({"event": "done"})
    except BenchPrepError as error:
        _emit_error(error.exit_code, error.message, error.remedy)
    except Exception as error:
        traceback.print_exc()
        _emit_error(1, f"{type(error).__name__}: {error}", REPORT_FAULT)
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM and torch leave threads and process groups behind that only delay the exit.
    os._exit(0)


def _emit_error(exit_code: int, message: str, remedy: str) -> None:
    emit(
        {
            "event": "error",
            "exit_code": exit_code,
            "message": message,
            "remedy": remedy,
            "traceback": traceback.format_exc(),
        }
    )


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


def import_vllm(package_dir: str) -> str:
    """Import vLLM and return its version.

    Raises:
        NotTheWorktree: Python imports another vLLM than the verified package.
        Missing: no vLLM, or one that cannot be imported.
    """
    if importlib.util.find_spec("vllm") is None:
        raise Missing(
            "vLLM is not installed in this environment",
            "run scripts/run_bench.sh, or give --worktree to build and install one",
        )
    if "vllm" in sys.modules:
        raise NotTheWorktree(
            "something imports vllm when Python starts, before its bytecode can be shut out",
            "look for it in the .pth files of site-packages, and in sitecustomize",
        )
    compile_from_source("vllm")
    # vLLM looks into models in an interpreter of its own, which shall not run bytecode either.
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path("no-bytecode").absolute())
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
    if Path(origin).resolve().parent != Path(package_dir).resolve():
        raise NotTheWorktree(
            f"Python imports vLLM from {Path(origin).parent}, not from the verified {package_dir}",
            "remove the other vllm from the environment's path",
        )
    emit({"event": "imported", "package_dir": str(Path(origin).parent)})
    return str(vllm.__version__)


def check_imported(job: dict[str, Any]) -> None:
    """Every vLLM module that was imported so far is a verified file, and still that file.

    Raises:
        NotTheWorktree: one is not.
    """
    package_dir, hashes = Path(job["package_dir"]), job["hashes"]
    root = package_dir.resolve().parent
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None) if name.partition(".")[0] == "vllm" else None
        if not origin:
            continue
        path = Path(origin).resolve()
        if not path.is_relative_to(package_dir.resolve()):
            raise NotTheWorktree(
                f"{name} was imported from {origin}, not from the verified {package_dir}",
                "remove the other vllm from the environment's path",
            )
        relative = path.relative_to(root).as_posix()
        known = hashes.get(relative)
        if known is None:
            raise NotTheWorktree(
                f"{name} was imported from {origin}, which is no verified file",
                "remove that file, and run the command again",
            )
        # What was compiled counts too: the file may have been put right since.
        if {_now(path), compiled_sha256(origin) or known} != {known}:
            raise NotTheWorktree(
                f"{relative} changed after it was verified", "run the command again"
            )


def _now(path: Path) -> str | None:
    try:
        return file_sha256(path)
    except OSError:
        return None  # gone


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
    folder = Path(__file__).with_name("fastpath")
    files = [path for path in folder.iterdir() if path.suffix in (".py", ".json")]
    return combined_sha256({path.name: file_sha256(path) for path in files})

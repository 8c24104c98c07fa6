"""In the timing process: the vLLM that Python imports is the one that was verified."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from bench_prep.child.channel import emit
from bench_prep.decode.events import Imported
from bench_prep.errors import Missing, NotTheWorktree
from bench_prep.provenance.bytecode import compile_from_source, compiled_sha256
from bench_prep.provenance.hashes import file_sha256


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
    emit(Imported(str(Path(origin).parent)))
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

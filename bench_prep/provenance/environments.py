"""Environments of worktrees: one folder per wheel that holds that wheel's vLLM alone.

A process that puts such a folder before every other one imports this vLLM, and all else from the
environment that runs bench-prep. A folder is made once and named by the wheel's hash;
`bench-prep cache` lists and removes them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench_prep.errors import Missing
from bench_prep.provenance.build import BuiltWheel
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.install import InstalledVllm, install_wheel, installed_vllm
from bench_prep.provenance.pip_process import Progress


def environment_of(built: BuiltWheel, progress: Progress = lambda _: None) -> InstalledVllm:
    """The wheel's vLLM in a folder of its own: `InstalledVllm.package_dir.parent`.

    Raises:
        Missing: pip could not install it, or the disk is full.
    """
    place = _place(built.sha256)
    if not place.is_dir():
        _make(built, place, progress)
    installed = installed_vllm(place)
    if installed is None:
        raise Missing(
            f"the environment {place.name} holds no vLLM",
            "clear it: bench-prep cache --clear, and run again",
        )
    return installed


def _make(built: BuiltWheel, place: Path, progress: Progress) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix="making-", dir=place.parent))
    try:
        install_wheel(built, progress, site=making)
        try:
            making.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was first, with the same wheel
                raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def environment_named(wheel_sha256: str) -> InstalledVllm | None:
    """The environment of the wheel with this hash, where there still is one."""
    place = _place(wheel_sha256)
    return installed_vllm(place) if place.is_dir() else None


def _place(wheel_sha256: str) -> Path:
    return cache_dir() / "envs" / wheel_sha256[:32]

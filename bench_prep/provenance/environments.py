"""Environments of worktrees: one folder per wheel that holds that wheel's vLLM alone.

A process that puts such a folder before every other one imports this vLLM, and all else from the
environment that runs bench-prep. A folder is named by the wheel's hash, and made anew where it is
no longer what that wheel makes; the newest few are kept.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from bench_prep.errors import Missing
from bench_prep.provenance.build import BuiltWheel
from bench_prep.provenance.cachedir import cache_dir, made, no_fault
from bench_prep.provenance.install import InstalledVllm, install_wheel, installed_vllm
from bench_prep.provenance.locks import USE, locked_at_once, shared
from bench_prep.provenance.pip_process import Progress
from bench_prep.provenance.verify import Verification, fingerprint, verify
from bench_prep.provenance.worktree import Worktree

_KEPT = 8
_MAKING = "making-"


@dataclass(frozen=True)
class Environment:
    """A worktree's vLLM in a folder of its own, `verification.package_dir.parent`."""

    verification: Verification
    #: Why the folder that was there has been made anew; empty where it was right, or none was.
    damage: str


@contextmanager
def cache_in_use() -> Iterator[None]:
    """Nothing is removed from the cache meanwhile; older environments are before that, if no other
    process has it in use.

    Raises:
        UsageError: the cache is being cleared.
    """
    with suppress(Timeout), locked_at_once(USE):
        _prune()
    with shared(USE):
        yield


def environment_of(
    built: BuiltWheel, worktree: Worktree, progress: Progress = lambda _: None
) -> Environment:
    """The wheel's vLLM in a folder of its own, compared whole with the worktree it was built from.

    Raises:
        Missing: pip could not install it, or the disk is full.
    """
    place = _place(built.sha256)
    damage = ""
    if place.is_dir():
        os.utime(place)  # used last, so kept longest
        found = _compared(place, worktree)
        damage = "" if found is not None and found.ok else _damage(place)
        if found is not None and not damage:
            return Environment(found, "")
    with no_fault("making an environment"):
        _make(built, place, progress, replacing=bool(damage))
    found = _compared(place, worktree)
    if found is None:
        raise Missing(
            f"the environment {place.name} holds no vLLM",
            "clear it: bench-prep cache --clear, and run again",
        )
    return Environment(found, damage)


def environment_named(wheel_sha256: str) -> InstalledVllm | None:
    """The environment of the wheel with this hash, where there still is one."""
    place = _place(wheel_sha256)
    return installed_vllm(place) if place.is_dir() else None


def _compared(place: Path, worktree: Worktree) -> Verification | None:
    installed = installed_vllm(place)
    return None if installed is None else verify(worktree, installed, whole=True)


def _damage(place: Path) -> str:
    """In what the folder is not what its wheel makes, whatever the worktree is by now."""
    installed = installed_vllm(place)
    return "no vLLM" if installed is None else fingerprint(installed, whole=True).summary


def _make(built: BuiltWheel, place: Path, progress: Progress, *, replacing: bool) -> None:
    """Make the folder, in the place of a damaged one where `replacing`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=place.parent))
    try:
        install_wheel(built, progress, site=making / "new")
        if replacing:
            with suppress(FileNotFoundError):
                place.rename(making / "old")
        try:
            (making / "new").rename(place)
        except OSError:
            if not place.is_dir():  # else another process was first, with the same wheel
                raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _prune() -> None:
    """Remove what killed processes left, and all but the newest environments; nobody uses any."""
    places = []
    for place in made("envs"):
        if place.name.startswith(_MAKING):
            shutil.rmtree(place, ignore_errors=True)
        else:
            places.append(place)
    newest_first = sorted(places, key=lambda place: place.stat().st_mtime, reverse=True)
    for place in newest_first[_KEPT:]:
        shutil.rmtree(place, ignore_errors=True)


def _place(wheel_sha256: str) -> Path:
    return cache_dir() / "envs" / wheel_sha256[:32]

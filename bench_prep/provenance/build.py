"""The wheel: vLLM's own build of a worktree through pip, kept for as long as nothing changes."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import sys
import sysconfig
import time
import uuid
import zipfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_prep.errors import Missing, NotTheWorktree, UsageError
from bench_prep.provenance.cachedir import cache_dir, disk_full, made, new_log, publish, says_full
from bench_prep.provenance.difference import difference
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.locks import BUILD, locked
from bench_prep.provenance.pip_process import Progress, last_lines, run_pip
from bench_prep.provenance.staging import add_narrow_cpu_parts, needs_narrow_cpu_parts, stage
from bench_prep.provenance.worktree import Worktree

_KEPT_WHEELS = 5
_LINES_SHOWN = 15
#: In the environment of everything that a build starts.
_BUILD_ID = "BENCH_PREP_BUILD_ID"
_LOG, _RECORD = "build.log", "record.json"

#: A precompiled switch left in the shell would change what "a full compile" means.
_REMOVED = re.compile(r"VLLM_(USE_)?PRECOMPILED\w*")
#: Settings of vLLM's build and of compilers that change what is compiled.
_COMPILER_SETTINGS = re.compile(
    r"CC|CXX|C(XX)?FLAGS|LDFLAGS|(CMAKE|CUDA|ROCM|HIP|HIPCC|NVCC)_\w+|TORCH_CUDA_ARCH_LIST"
    r"|PYTORCH_ROCM_ARCH|VLLM_(MAIN_CUDA_VERSION|REQUIRE_RUST_FRONTEND|CPU_(DISABLE_)?A(VX|MX|RM)\w*)"
)


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel in the cache; `seconds` is what this call took, `log` the build's output."""

    path: Path
    sha256: str
    tree_hash: str
    cached: bool
    seconds: float
    log: Path


@dataclass(frozen=True)
class _Recipe:
    """Everything but the tree that decides what is built."""

    version: str
    precompiled_sha256: str | None
    target_device: str | None
    narrow_cpu_parts: bool
    python: str
    torch: str | None
    compiler_settings: dict[str, str]

    def key(self, tree_hash: str) -> str:
        text = json.dumps([tree_hash, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def build_wheel(
    worktree: Worktree, precompiled: Path | None, target_device: str | None, progress: Progress
) -> BuiltWheel:
    """The wheel of the worktree: from the cache if nothing changed, else built by vLLM's build.

    With `precompiled`, a wheel whose compiled parts are used, a copy of the tree is built; without,
    all is compiled in the tree itself, so that the next compilation is incremental.
    `target_device` is vLLM's `VLLM_TARGET_DEVICE` (None: vLLM's own choice).

    Raises:
        UsageError: `precompiled` is not a wheel.
        Missing: the build failed (its last lines are in the message, its log is kept), or the disk
            is full. The cache stays as it was.
        NotTheWorktree: the tree changed while it was being compiled.
    """
    started = time.monotonic()
    recipe = _recipe(worktree, precompiled, target_device)
    with locked(BUILD, progress):
        tree_hash = worktree.tree_hash()
        found = _from_cache(recipe.key(tree_hash), tree_hash, started)
        if found:
            progress(f"the worktree is unchanged: {found.path.name} is reused")
            return found
        try:
            return _build(worktree, precompiled, recipe, tree_hash, progress, started)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise disk_full("the build") from None
            raise Missing(f"the build cannot read or write: {error}", "check that file") from None


def _recipe(worktree: Worktree, precompiled: Path | None, device: str | None) -> _Recipe:
    if precompiled is not None and not precompiled.exists():
        raise UsageError(
            f"no such file: {precompiled}",
            "check --precompiled; scripts/run_bench.sh fetches the official wheel again",
        )
    if precompiled is not None and not zipfile.is_zipfile(precompiled):
        raise UsageError(
            f"{precompiled} is not a wheel",
            "give the .whl file whose compiled parts are to be used",
        )
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    return _Recipe(
        version=worktree.version,
        precompiled_sha256=file_sha256(precompiled) if precompiled else None,
        target_device=device or os.environ.get("VLLM_TARGET_DEVICE"),
        narrow_cpu_parts=precompiled is not None and device == "cpu" and needs_narrow_cpu_parts(),
        python=f"{sys.implementation.cache_tag} {sysconfig.get_platform()}",
        torch=torch,
        compiler_settings={k: v for k, v in os.environ.items() if _COMPILER_SETTINGS.fullmatch(k)},
    )


def _from_cache(key: str, tree_hash: str, started: float) -> BuiltWheel | None:
    place = cache_dir() / "wheels" / key
    try:
        record = json.loads((place / _RECORD).read_text())
        wheel = place / record["wheel"]
        if file_sha256(wheel) != record["sha256"]:
            return None  # damaged: build it again
        os.utime(place)  # used last, so kept longest
        sha256 = str(record["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    seconds = time.monotonic() - started
    return BuiltWheel(wheel, sha256, tree_hash, True, seconds, place / _LOG)


def _build(
    worktree: Worktree,
    precompiled: Path | None,
    recipe: _Recipe,
    tree_hash: str,
    progress: Progress,
    started: float,
) -> BuiltWheel:
    all_builds = cache_dir() / "building"
    _clear_killed_builds()
    # A name of its own: what a killed build left running cannot write into this one.
    building = all_builds / uuid.uuid4().hex
    finished = building / "made"
    finished.mkdir(parents=True)
    log = finished / _LOG
    try:
        device = f" for {recipe.target_device}" if recipe.target_device else ""
        label = f"building vLLM {worktree.version}{device}"
        if precompiled is None:
            source = worktree.root
            # Files that were deleted since the last build would come back from here.
            for stale in [*source.glob("build/lib*"), *source.glob("build/bdist*")]:
                shutil.rmtree(stale)
            label += " (full compile)"
        else:
            source = building / "source"
            tree_hash = stage(worktree, source)
            if recipe.narrow_cpu_parts:
                add_narrow_cpu_parts(precompiled, source)
            label += f" with the compiled parts of {precompiled.name}"
        arguments = ["wheel", "-v", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        returned = run_pip(
            [*arguments, "--wheel-dir", str(finished), str(source)],
            cwd=building,
            log=log,
            label=label,
            progress=progress,
            env=_environment(recipe, precompiled, building),
        )
        wheels = list(finished.glob("*.whl"))
        if returned != 0 or len(wheels) != 1:
            raise _failed(log, precompiled)
        if precompiled is None and worktree.tree_hash() != tree_hash:
            raise NotTheWorktree(
                f"{worktree.root} changed while it was being compiled", "run the command again"
            )
        sha256 = file_sha256(wheels[0])
        seconds = time.monotonic() - started
        differs = difference(worktree)
        record = asdict(recipe) | {
            "wheel": wheels[0].name,
            "sha256": sha256,
            "tree_hash": tree_hash,
            "worktree": str(worktree.root),
            "commit": worktree.commit,
            "dirty": None if differs is None else bool(differs.files),
            "diff_sha256": differs.sha256 if differs else None,
            "seconds": round(seconds, 1),
        }
        (finished / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        place = cache_dir() / "wheels" / recipe.key(tree_hash)
        publish(finished, place)
        _forget_old_wheels()
    finally:
        shutil.rmtree(building, ignore_errors=True)
        with suppress(OSError):
            all_builds.rmdir()
    return BuiltWheel(place / wheels[0].name, sha256, tree_hash, False, seconds, place / _LOG)


def _environment(recipe: _Recipe, precompiled: Path | None, building: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not _REMOVED.fullmatch(name)}
    env["VLLM_VERSION_OVERRIDE"] = recipe.version
    env[_BUILD_ID] = building.name
    if recipe.target_device:
        env["VLLM_TARGET_DEVICE"] = recipe.target_device
    if precompiled is not None:
        env["VLLM_USE_PRECOMPILED"] = "1"
        env["VLLM_PRECOMPILED_WHEEL_LOCATION"] = str(precompiled.absolute())
        # The copy is in no repository, even where the cache is.
        env["GIT_CEILING_DIRECTORIES"] = str(building)
        if "VLLM_REQUIRE_RUST_FRONTEND" not in env:
            # vLLM would compile a Rust front end that the wheel lacks wherever it finds a cargo,
            # for minutes, and differently on each machine; it is optional and not timed.
            env["CARGO"] = "false"
    return env


def _failed(log: Path, precompiled: Path | None) -> Missing:
    started = time.strftime("%Y%m%d-%H%M%S")
    kept = log.replace(new_log(f"build-{started}-{log.parent.parent.name[:8]}.log"))
    lines = last_lines(kept, _LINES_SHOWN)
    if says_full(lines):
        return disk_full("the build")
    shown = "\n".join(f"    {line[:200]}" for line in lines)
    reason, remedy = _cmake_error(kept), f"the whole output is in {kept}"
    if reason and precompiled is None:
        remedy = f"take the compiled parts from a wheel: --precompiled WHEEL; {remedy}"
    return Missing(f"the build of the wheel failed{reason}; its last lines:\n{shown}", remedy)


def _cmake_error(log: Path) -> str:
    """CMake's first error, which the output of pip hides; empty where there is none."""
    text = log.read_text(errors="replace")
    found = re.search(r"^\s*(CMake Error.*)\n\s*(.*)", text, re.MULTILINE)
    return f": {found[1]} {found[2].strip()}"[:300] if found else ""


def _clear_killed_builds() -> None:
    """Remove what killed builds left, and end what they left running; the lock is held."""
    for left in made("building"):
        marker = f"{_BUILD_ID}={left.name}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if marker in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
        shutil.rmtree(left, ignore_errors=True)


def _forget_old_wheels() -> None:
    newest_first = sorted(made("wheels"), key=lambda place: place.stat().st_mtime, reverse=True)
    for place in newest_first[_KEPT_WHEELS:]:
        with suppress(OSError):
            shutil.rmtree(place)

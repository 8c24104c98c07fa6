"""Where wheels, downloads and build logs are kept between runs."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench_prep.errors import Missing

KEPT_LOGS = 50
#: Bytes.
_NO_ROOM = 1_000_000
#: The parts of the cache, each with the names that bench-prep gives in it. Whatever else lies there
#: is somebody else's: anyone can have named a folder in use.
MADE = {
    "downloads": r"vllm.*\.(whl|tar\.gz)|pip\.log|arriving",
    "official": r"vllm-.*|.*\.json|unpacking",
    "wheels": r"[0-9a-f]{32}",
    "logs": r"(build|engine|prove|run|serve|steps|sweep)-.*\.log",
    "envs": r"[0-9a-f]{32}|making-.*",
    "building": r"[0-9a-f]{32}",
    "models": r"[0-9a-f]{32}|making-.*",
}


def cache_dir() -> Path:
    """`$BENCH_PREP_CACHE`, else `${XDG_CACHE_HOME:-~/.cache}/bench-prep`; made if absent.

    Raises:
        Missing: the folder cannot be made, or there is no home to make it in.
    """
    # platformdirs would take another folder on macOS, and one named `~` where there is no home.
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "bench-prep")
    try:
        folder = Path(os.environ.get("BENCH_PREP_CACHE") or default).expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise _unusable(f"cannot be made: {error}") from None
    return folder


def writable_cache_dir() -> Path:
    """The same for who will write into it.

    Raises:
        Missing: the folder cannot be made, or not be written.
    """
    folder = cache_dir()
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unusable(f"cannot be written: {folder}")
    return folder


def _unusable(why: str) -> Missing:
    return Missing(f"the cache folder {why}", "set BENCH_PREP_CACHE to a writable folder")


def made(part: str) -> Iterator[Path]:
    """What bench-prep itself made in this part of the cache."""
    folder = cache_dir() / part
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if re.fullmatch(MADE[part], path.name))


def new_log(name: str) -> Path:
    """Where a new log goes; of the older ones only the newest are kept."""
    logs = writable_cache_dir() / "logs"
    with no_fault("making a log"):
        logs.mkdir(exist_ok=True)
    found = []
    for path in made("logs"):
        with suppress(OSError):  # another process removes old ones too
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[KEPT_LOGS - 1 :]:
        with suppress(OSError):
            path.unlink()
    return logs / name


def publish(finished: Path, place: Path) -> None:
    """Put a finished folder in its place at once; whatever stood there (damaged) goes away.

    Both lie in the cache, so on one file system, and the caller holds the lock.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        shutil.rmtree(place)
    finished.replace(place)


def disk_full(what: str) -> Missing:
    """The error for a full disk while `what` was being done."""
    folder = cache_dir()
    free_mb = shutil.disk_usage(folder).free / 1e6
    return Missing(
        f"the disk is full ({free_mb:.0f} MB free in {folder}): {what} was undone",
        "free some space, or set BENCH_PREP_CACHE to a folder on another disk",
    )


def says_full(lines: list[str]) -> bool:
    """Whether a child's last words are that the disk is full, or there was no room for any."""
    if not lines:
        return shutil.disk_usage(cache_dir()).free < _NO_ROOM
    return any("No space left on device" in line for line in lines)


@contextmanager
def no_fault(what: str) -> Iterator[None]:
    """A file or folder of the cache that cannot be used while `what` was being done is not ours to
    mend.

    Raises:
        Missing: the disk is full, or an operation on a file failed.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(what) from None
        raise Missing(f"{what} failed: {error}", "check the cache folder") from None

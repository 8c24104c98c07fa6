"""Locks between bench-prep processes, with the name of whoever holds them."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.pip_process import Progress

#: Held while a wheel is built, while one is installed, and while a release is fetched.
BUILD, INSTALL, OFFICIAL = "build", "install", "official"
_SAY_EVERY_S = 5.0


@contextmanager
def locked(name: str, progress: Progress = lambda _: None) -> Iterator[None]:
    """Hold the lock; while another process does, `progress` is told which one, every 5 s."""
    lock = FileLock(_lock_file(name))
    started = time.monotonic()
    timeout = 0.0
    while True:
        try:
            lock.acquire(timeout=timeout)
            break
        except Timeout:
            waited = f" ({time.monotonic() - started:.0f} s)" if timeout else ""
            progress(f"waiting for {holder(name)}{waited}")
            timeout = _SAY_EVERY_S
    with _holding(lock, name):
        yield


@contextmanager
def locked_at_once(name: str) -> Iterator[None]:
    """Hold the lock.

    Raises:
        filelock.Timeout: another process holds it.
    """
    lock = FileLock(_lock_file(name))
    lock.acquire(timeout=0)
    with _holding(lock, name):
        yield


def holder(name: str) -> str:
    """Who holds the lock: process, command, since when."""
    try:
        known = json.loads(_holder_file(name).read_text())
        pid, command, since = int(known["pid"]), str(known["command"]), str(known["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another bench-prep"
    if not Path(f"/proc/{pid}").exists():
        return "another bench-prep"  # what is written is of an earlier holder that was killed
    return f"process {pid} ({command}), at it since {since}"


@contextmanager
def _holding(lock: FileLock, name: str) -> Iterator[None]:
    file = _holder_file(name)
    try:
        known = {
            "pid": os.getpid(),
            "command": _command(),
            "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        }
        with suppress(OSError):  # a courtesy, which a full disk must not turn into an error
            unfinished = file.with_suffix(".tmp")
            unfinished.write_text(json.dumps(known))
            unfinished.replace(file)
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()


def _command() -> str:
    program = Path(sys.argv[0]).name
    return shlex.join(["bench-prep" if program == "__main__.py" else program, *sys.argv[1:]])


def _lock_file(name: str) -> Path:
    return cache_dir() / f"{name}.lock"


def _holder_file(name: str) -> Path:
    # Not the lock file itself: waiting for a lock empties its file in some releases of filelock.
    return cache_dir() / f"{name}.holder"

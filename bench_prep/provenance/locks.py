"""Locks between bench-prep processes, with the name of whoever holds them."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from errno import ENOSYS
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from bench_prep.errors import UsageError
from bench_prep.provenance.cachedir import cache_dir, writable_cache_dir
from bench_prep.provenance.pip_process import Progress

#: Held while a wheel is built, while one is installed, while a release is fetched, and (shared)
#: while a run relies on what is in the cache.
BUILD, INSTALL, OFFICIAL, USE = "build", "install", "official", "use"
_SAY_EVERY_S = 5.0
#: How long who shares a lock waits for one who holds it alone.
_PATIENCE_S = 10.0


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
    """Hold the lock, alone.

    Raises:
        filelock.Timeout: another process holds it, or shares it.
    """
    lock = FileLock(_lock_file(name))
    lock.acquire(timeout=0)
    with _holding(lock, name):
        for killed in cache_dir().glob(f"{name}.*.holder"):
            killed.unlink(missing_ok=True)
        yield


@contextmanager
def shared(name: str) -> Iterator[None]:
    """Hold the lock together with whoever else shares it; nobody holds it alone meanwhile.

    Raises:
        UsageError: another process holds it alone, for more than 10 s.
    """
    with _lock_file(name).open("a+") as file:
        deadline = time.monotonic() + _PATIENCE_S
        while not _is_shared(file):
            if time.monotonic() > deadline:
                raise in_use_by(name)
            time.sleep(0.1)
        with _named(f"{name}.{os.getpid()}"):
            yield


def _is_shared(file: IO[str]) -> bool:
    try:
        # The same kind of lock as filelock's own, which cannot be shared.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != ENOSYS:  # a file system without locks
            raise
    return True


def in_use_by(name: str) -> UsageError:
    """The error for a lock that cannot be had."""
    return UsageError(f"the cache is in use by {holder(name)}", "wait until it has ended")


def holder(name: str) -> str:
    """Who holds the lock, or shares it: process, command, since when."""
    for file in sorted(cache_dir().glob(f"{name}.*holder")):
        try:
            known = json.loads(file.read_text())
            pid, command, since = int(known["pid"]), str(known["command"]), str(known["since"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if Path(f"/proc/{pid}").exists():  # else of an earlier holder that was killed
            return f"process {pid} ({command}), at it since {since}"
    return "another bench-prep"


@contextmanager
def _holding(lock: FileLock, name: str) -> Iterator[None]:
    try:
        with _named(name):
            yield
    finally:
        lock.release()


@contextmanager
def _named(name: str) -> Iterator[None]:
    # Not the lock file itself: waiting for a lock empties its file in some releases of filelock.
    file = cache_dir() / f"{name}.holder"
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


def _command() -> str:
    program = Path(sys.argv[0]).name
    return shlex.join(["bench-prep" if program == "__main__.py" else program, *sys.argv[1:]])


def _lock_file(name: str) -> Path:
    return writable_cache_dir() / f"{name}.lock"

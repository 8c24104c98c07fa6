"""Files that are replaced as a whole: what was there stays until the new content is safe."""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench_prep.errors import Missing, UsageError

#: What the system says where there is no room.
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def as_user_error(path: Path, instead: str = "choose another --output") -> Iterator[None]:
    """Turns what the operating system says about `path` into an error with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise Missing(
                f"no space left to write {path} (the file is as it was)",
                f"free some space in {path.parent}, or {instead}",
            ) from None
        raise UsageError(f"{path} cannot be written: {error.strerror or error}", instead) from None


@contextmanager
def not_interrupted() -> Iterator[None]:
    """A second, impatient Ctrl-C must not cost what was measured."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A new, empty file beside `target` that is gone afterwards unless it was moved."""
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        # 0o666 without the umask's bits, as for any new file.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Its descriptor, to write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def replace(target: Path, content: bytes) -> None:
    """Makes `content` the whole of `target`, or leaves it untouched; its mode is kept."""
    with beside(target) as temporary:
        with opened(temporary) as descriptor:
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        # Closed first: some filesystems report a full disk only then.
        temporary.replace(target)
    # The content is safe; the new name is too once the folder is. Not every filesystem can.
    with suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_replaceable(path: Path) -> None:
    """Make sure, before the work, that `path` can be written.

    Raises:
        UsageError: no such folder, not an ordinary file, or no permission.
        Missing: no space on the disk.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not an ordinary file", "give a file name")
    with as_user_error(path, "choose another file"), beside(path.resolve()):
        pass


def write_json(path: Path, value: Any) -> None:
    """Make `value` the content of `path`, indented; its old content stays if that fails.

    Raises:
        UsageError: the file cannot be written.
        Missing: no space on the disk.
    """
    content = (json.dumps(value, indent=2) + "\n").encode()
    with as_user_error(path, "choose another file"):
        replace(path.resolve(), content)

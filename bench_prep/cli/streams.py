"""What is printed goes to streams that end nothing: closed, full, without a width or a letter."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import MutableMapping
from typing import Any

#: A terminal's columns that a table can be made for.
_WIDTHS = range(1, 10_000)


class Lasting(io.FileIO):
    """A descriptor that takes what it can; `failed` is why it takes no more."""

    failed: OSError | None = None

    def write(self, data: Any, /) -> int:
        while self.failed is None:
            try:
                if (number := super().write(data)) is not None:
                    return number
                select.select([], [self], [])  # another program made it non-blocking
            except OSError as error:
                self.failed = error
        return len(data)

    @property
    def lost(self) -> str | None:
        """Why a reader who still waits did not get all of it."""
        if self.failed is None or self.failed.errno == errno.EPIPE:
            return None
        return self.failed.strerror


def drop_width(environment: MutableMapping[str, str]) -> None:
    """A width that is none, such as 0, leaves 80 columns."""
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):
        value = environment.get(name, "")
        if not (value.isdecimal() and int(value[:9]) in _WIDTHS):
            environment.pop(name, None)


def lasting_streams() -> Lasting:
    """Make the process's output `Lasting`, and what it has no letters for escaped; the first one.

    What was closed becomes the null device: else the next file that is opened would be taken for
    it, here or in a child.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    first, second = Lasting(1, "w", closefd=False), Lasting(2, "w", closefd=False)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(first, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(second, sys.stderr)
    return first


def _text(descriptor: Lasting, old: io.TextIOBase | None) -> io.TextIOWrapper:
    encoding = getattr(old, "encoding", None)
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor), encoding, "backslashreplace", line_buffering=True
    )

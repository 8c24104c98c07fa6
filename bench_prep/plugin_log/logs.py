"""Logs as they lie on a disk: rotated, compressed, in any order, or not a log at all."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG

from bench_prep.errors import UsageError
from bench_prep.plugin_log.lines import Line, marked_lines

STDIN = Path("-")
_HEAD = 1 << 16
_GZIP = b"\x1f\x8b"
#: vLLM's times have no year: `INFO 11-30 10:34:45`.
_TIME = re.compile(rb"\b\d\d-\d\d \d\d:\d\d:\d\d\b")
_YEAR = timedelta(days=366)


def read_logs(files: Sequence[Path]) -> Iterator[Line]:
    """The plugin's lines of one service, whose log may lie in several files in any order.

    Raises:
        UsageError: a file is missing, a folder, damaged or not text.
    """
    for file in _in_order(files):
        with _opened(file) as stream:
            yield from marked_lines(stream.read)


@contextmanager
def _opened(file: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """A log, unpacked."""
    try:
        with sys.stdin.buffer if file == STDIN else file.open("rb", _HEAD) as raw:
            assert isinstance(raw, BufferedReader)
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            # A log that was emptied under its writer begins with a hole, which reads as zeros.
            if b"\0" in stream.peek(_HEAD).lstrip(b"\0"):
                raise UsageError(f"{file} is binary and not a log", "give vLLM's log, as text")
            yield stream
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{file} cannot be read: {reason}", "give vLLM's log, as text") from None


def _in_order(files: Sequence[Path]) -> list[Path]:
    """Each file once, by vLLM's times; as given where a file names none."""
    unique = list({file.resolve(): file for file in files}.values())
    times = {file: _first_time(file) for file in unique} if len(unique) > 1 else {}
    known = {file: time for file, time in times.items() if time is not None}
    if not known or len(known) < len(unique):
        return unique
    ordered = sorted(unique, key=lambda file: known[file])
    # A log that goes over the end of a year begins behind the longest gap.
    gaps = [(known[file] - known[ordered[index - 1]]) % _YEAR for index, file in enumerate(ordered)]
    first = gaps.index(max(gaps))
    return ordered[first:] + ordered[:first]


def _first_time(file: Path) -> datetime | None:
    with suppress(OSError):  # opening it will say what is wrong
        if file == STDIN or not S_ISREG(file.stat().st_mode):
            return None  # it can be read only once
    with _opened(file) as stream:
        found = _TIME.search(stream.read(16 * _HEAD))
    if found is None:
        return None
    try:
        return datetime.strptime(f"2000-{found[0].decode()}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None

"""Logs as they lie on a disk: rotated, compressed, in any order, or not a log at all."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG

from bench_prep.errors import UsageError
from bench_prep.plugin_log.lines import marked_lines
from bench_prep.plugin_log.order import in_order
from bench_prep.plugin_log.records import Line

STDIN = Path("-")
_HEAD = 1 << 16
_GZIP = b"\x1f\x8b"
#: vLLM's times have no year: `INFO 11-30 10:34:45`.
_TIME = re.compile(rb"\b\d\d-\d\d \d\d:\d\d:\d\d\b")
_YEAR = timedelta(days=366)
#: What rotation adds to the name of a log.
_ROTATED = re.compile(r"(?:\.(?:\d[\dT:Z_-]*|gz|log|txt|old)|-\d{6}[\dT:Z_-]*)+$")


def read_logs(files: Sequence[Path]) -> Iterator[Line]:
    """The plugin's lines of one service, whose log may lie in several files in any order.

    Raises:
        UsageError: a file is missing, a folder, damaged or not text.
    """
    found: dict[Path, list[Line]] = {}
    for file in _in_order(files):
        with _opened(file) as stream:
            found[file] = in_order(marked_lines(stream.read))
    # The pieces of a rotated log follow each other; those of two replicas do not.
    apart = _overlap(found.values())
    for file, lines in found.items():
        name = _ROTATED.sub("", str(file)) if apart else ""
        yield from (replace(line, source=f"{name} {line.source}".strip()) for line in lines)


def _overlap(logs: Iterable[list[Line]]) -> bool:
    """Whether two files were written to at the same time, so that they are of two writers."""
    times = [[line.seconds for line in log if line.seconds is not None] for log in logs]
    spans = sorted((min(each), max(each)) for each in times if each)
    over_new_year = any(end - begin > _YEAR.total_seconds() / 2 for begin, end in spans)
    return not over_new_year and any(after[0] < before[1] for before, after in pairwise(spans))


@contextmanager
def _opened(file: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """A log, unpacked."""
    try:
        with sys.stdin.buffer if file == STDIN else file.open("rb", _HEAD) as raw:
            assert isinstance(raw, BufferedReader)
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            head = stream.peek(_HEAD)
            if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                raise UsageError(f"{file} is text in UTF-16", "iconv -f UTF-16 -t UTF-8, and again")
            # A log that was emptied under its writer begins with a hole, which reads as zeros;
            # journald's own export has the length of a text with colours before it.
            if b"\0" in head.lstrip(b"\0") and not head.startswith(b"__CURSOR="):
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

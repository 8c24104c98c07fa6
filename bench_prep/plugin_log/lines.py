"""The plugin's lines, found in a log of any size, whatever else wrote into it or wrapped it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench_prep.fastpath.log_lines import MARK

CHUNK = 1 << 20
#: Of a line at most so many bytes before the mark and after it are looked at.
LONGEST = 1 << 14

_MARK = MARK.encode()
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: vLLM's own: `[events.py:73] `.
_HEADER = re.compile(r"\[[\w./-]+\.py:\d+\]")
#: `(Worker pid=15254)`, and `"process": 15254` where vLLM logs in JSON, maybe wrapped again.
_PID = re.compile(r"pid=(\d{1,9})\)|\bprocess\\*\": *(\d{1,9})\b")


@dataclass(frozen=True)
class Line:
    """One of the plugin's lines: the process that wrote it, where known, and what it says."""

    pid: int | None
    text: str


def marked_lines(read: Callable[[int], bytes]) -> Iterator[Line]:
    """The plugin's lines in their order; memory does not grow with the log or with its lines.

    `read(size)` returns the next bytes of the log, none at its end.
    """
    buffer = b""
    begins, ended = True, False  # whether a line begins where the buffer does
    while not ended:
        chunk = read(CHUNK)
        ended = not chunk
        buffer += chunk
        done = 0
        while (at := buffer.find(_MARK, done)) >= 0:
            most = at + LONGEST
            end = buffer.find(b"\n", at, most)
            if end < 0:
                if len(buffer) < most and not ended:
                    break  # the rest of the line is still to be read
                end = min(most, len(buffer))
            newline = buffer.rfind(b"\n", max(done, at - LONGEST), at)
            # A process that was killed leaves its line open, and the next one goes on in it.
            following = buffer.find(_MARK, at + len(_MARK), end)
            line = None
            if newline >= 0 or (begins and at - done <= LONGEST):
                start = newline + 1 if newline >= 0 else done
                line = _parse(buffer[start : following if following >= 0 else end])
            if line is not None:
                yield line
            begins = line is not None
            done = at + len(_MARK) if begins and following >= 0 else end
        kept = max(done, (at if at >= 0 else len(buffer)) - LONGEST)
        begins = begins and kept == done
        buffer = buffer[kept:]


def _parse(raw: bytes) -> Line | None:
    """None for a mark that another line quotes, such as a logged prompt."""
    line = raw.decode("utf-8", "replace")
    before, _, text = _COLOUR.sub("", _unwrapped(line)).partition(MARK)
    header = _HEADER.search(before)
    if before[header.end() if header else -1 :].strip():
        return None
    pids = _PID.findall(line[: line.find(MARK)])
    pid = int("".join(pids[-1])) if pids else None
    return Line(pid, text.partition("\n")[0].strip())


def _unwrapped(line: str) -> str:
    """The log message inside of a line that is a JSON object (Docker, journald, vLLM's own)."""
    while 0 <= (start := line.find('{"')) < line.find(MARK):
        try:
            record, _ = json.JSONDecoder().raw_decode(line, start)
            line = next((text for text in _strings(record) if MARK in text), "")
        except (ValueError, RecursionError):
            break
    return line


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)

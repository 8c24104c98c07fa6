"""The plugin's lines, found in a log of any size and of any common export."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator, Iterator
from contextlib import suppress

from bench_prep.fastpath.log_lines import MARK
from bench_prep.plugin_log.partial import Read, may_be_split, whole_lines
from bench_prep.plugin_log.records import Columns, Line, columns_of, lines_of

CHUNK = 1 << 18
#: Of a line at most so many bytes before the mark and after it are looked at.
LONGEST = 1 << 14
#: Characters of one JSON document that is read whole.
_LONGEST_DOCUMENT = 1 << 24

_MARK = MARK.encode()
_NUMBERS = re.compile(rb'"MESSAGE" ?: ?\[')
_JOURNAL = re.compile(r"^\s*(\w+)=(.*)$", re.MULTILINE)
_BETWEEN = re.compile(r"[\s,\[\]\x1e]*")


def marked_lines(read: Read) -> Iterator[Line]:
    """The plugin's lines in their order; memory does not grow with the log or with its lines.

    `read(size)` returns the next bytes of the log, none at its end.
    """
    first = read(CHUNK)
    while b"\n" not in first and len(first) < LONGEST and (more := read(CHUNK)):
        first += more
    if _is_document(first):
        first = yield from _in_documents(first, read)
    columns = columns_of(first[:LONGEST].partition(b"\n")[0].decode("utf-8", "replace"))
    pending = [first]

    def again(size: int) -> bytes:
        return pending.pop() if pending else read(size)

    yield from _in_lines(whole_lines(again) if may_be_split(first) else again, columns)


def _is_document(first: bytes) -> bool:
    """Whether it is JSON that is not an object a line."""
    first = first.removeprefix(codecs.BOM_UTF8).lstrip()
    if not first.startswith(b"{"):
        return re.match(rb'\[\s*[\[{"]', first) is not None
    line = first.partition(b"\n")[0]
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return re.match(rb'\{\s*"', first) is not None
    return len(line) > LONGEST or line.count(_MARK) > 1 or _NUMBERS.search(first) is not None


def _in_documents(first: bytes, read: Read) -> Generator[Line, None, bytes]:
    """The lines in JSON documents, one behind the other; returns what follows them."""
    decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
    buffer = decode(first)
    while True:
        at = 0
        with suppress(ValueError, RecursionError):
            while between := _BETWEEN.match(buffer, at):
                at = between.end()
                value, at = json.JSONDecoder().raw_decode(buffer, at)
                yield from lines_of(value)
        buffer = buffer[at:]
        chunk = read(max(CHUNK, len(buffer)))
        over = buffer[:1] not in ("", "{", '"') or len(buffer) > _LONGEST_DOCUMENT
        if over or not chunk:
            return (buffer + decode(chunk)).encode()
        buffer += decode(chunk)


def _in_lines(read: Read, columns: Columns) -> Iterator[Line]:
    buffer = b""
    begins, ended = True, False  # whether a line begins where the buffer does
    while not ended:
        chunk = read(CHUNK)
        ended = not chunk
        buffer += chunk
        done = 0
        while (at := buffer.find(_MARK, done)) >= 0:
            most = at + LONGEST
            if len(buffer) < most and not ended:
                break  # the rest of the line, or what is wrapped, may still be to be read
            end = buffer.find(b"\n", at, most)
            end = end if end >= 0 else min(most, len(buffer))
            newline = buffer.rfind(b"\n", max(done, at - LONGEST), at)
            lines = [Line(None, "")]
            if newline >= 0 or (begins and at - done <= LONGEST):
                start = newline + 1 if newline >= 0 else done
                text = buffer[start:end].decode("utf-8", "replace")
                around: tuple[dict[str, str], ...] = ()
                if text.lstrip().startswith("MESSAGE"):  # journald's own export: a field a line
                    first = buffer.rfind(b"\n\n", max(0, at - LONGEST), at) + 1
                    record = buffer[first:most].partition(b"\n\n")[0].decode("utf-8", "replace")
                    around = (dict(_JOURNAL.findall(record)),)
                lines = list(lines_of(text, around, columns))
                if lines and lines[-1].text.startswith("{") and lines[-1].counts is None:
                    # A terminal wraps a long line, and who copies it gets several.
                    last = lines.pop()
                    more = buffer[end:most].partition(_MARK)[0].decode("utf-8", "replace")
                    text = last.text + more.replace("\r", "").replace("\n", "")
                    whole = Line(last.pid, text, last.source, last.seconds)
                    lines.append(whole if whole.counts else last)
            yield from lines
            begins = bool(lines) and bool(lines[-1].text)
            done = end
        kept = max(done, (at if at >= 0 else len(buffer)) - LONGEST)
        begins = begins and kept == done
        buffer = buffer[kept:]

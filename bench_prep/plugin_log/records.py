"""What the plugin said in one record of a log, whatever collected, wrapped or escaped it."""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from bench_prep.fastpath.log_lines import MARK, SUMMARY

_COLOUR = re.compile(r"(?:\x1b|#033|\\033|\\x1b|\\u001b|\^\[)\[[0-9;]*[mK]")
#: rsyslog writes a line feed as `#012`.
_LINE_END = re.compile(r"[\r\n]|#01[25]")
#: vLLM's own: `[events.py:73] `.
_HEADER = re.compile(r"\[[\w./-]+\.py:\d+\]")
#: Other words that a formatter, set by the user, puts before the message.
_FORMATTER = re.compile(
    r"debug|info|warn(ing)?|error|stdout|stderr|[FP]|message|MainProcess|MainThread|pid|ip|py"
    r"|(vllm|bench_prep|fastpath|events)([._]\w+)*|\w*(Worker|EngineCore|Actor|Executor)\w*"
    r"|reserved|closed|closed_for_good|off|failed|first_dispatch|summary",
    re.IGNORECASE,
)
#: `(Worker pid=15254)`, and `(RayWorkerWrapper pid=274, ip=10.2.1.15)` of another machine.
_PID = re.compile(r"pid=(\d{1,9})(?:, ip=([\w.:]+))?\)")
_WHEN = re.compile(
    r"(?:\d{4}[-/])?(\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?(?:Z| ?[+-]\d\d:?\d\d)?"
    r"|\b(1[5-9]\d{8})(\d{3}|\d{6}|\d{9})?\b"
)
_CLOCK = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|UTC)\b"
)
#: What compose, kubectl, stern, syslog, mpirun or grep put before a line: from where it is.
_LABEL = re.compile(
    r"\s*(?:<\d+>\d?\s*)?(?:(?:stdout [FP]|stderr [FP]|-|[\w.@/-]+\s*\|"
    r"|\[[\w./:,-]*[/\d][\w./:,-]*\](?:<\w+>)?:?|[\w.-]+ [\w./@-]+(?:\[\d+\])?:"
    r"|[\w.-]*\d[\w.-]*(?: [\w.-]+)?)(?=\s)|[\w.@/-]*[\d./][\w.@/-]*:(?=[\s\d(\[]|$))\s*"
)
_ORIGIN = re.compile(r"\(\w[\w ]* pid=\d|\b(?:DEBUG|INFO|WARNING|ERROR)\b|\[[\w./-]+\.py:\d+\]")
#: Of the names of a record's fields: those that tell machines and replicas apart, and times.
_WHERE = re.compile(
    r"host(name)?|node|pod|container|instance|replica|machine|task|logstream|prefix"
)
_TIMES = re.compile(r"(date|asc)?time|timestamp|ts|date|0")
_STRING = r'"(?:[^"\\]|\\.)*'
#: The text of a field in JSON that is cut or spread over lines, and in logfmt.
_FIELD = re.compile(rf'(?:"\s*:\s*|\b\w+=)({_STRING}{re.escape(MARK)}{_STRING[1:]}")')
_PAIR = re.compile(rf'"?([\w.@-]+)"?\s*[=:]\s*({_STRING}"|[^\s",}}]+)')
_CELL = re.compile(r'(?:^|([,;\t|]))"')
_NUMBERS = ("pid", "steps", "decode_steps", "dispatched", "checked")


@dataclass(frozen=True)
class Line:
    """One of the plugin's lines.

    Attributes:
        pid: the process that wrote it, where known.
        text: what it says; "" where a mark was found whose line cannot be read.
        source: the machine or replica that the log names; "" for none.
        seconds: when it was written, in a year that is not known; None if the log does not tell.
    """

    pid: int | None
    text: str
    source: str = ""
    seconds: float | None = None

    @cached_property
    def counts(self) -> dict[str, Any] | None:
        """The counters of a summary; None for any other line, and for one that was cut."""
        quotes = self.text.replace('""', '"'), re.sub(r'\\+"', '"', self.text)
        for text in (self.text, *quotes, html.unescape(self.text)):
            try:
                record, _ = json.JSONDecoder().raw_decode(text)
            except (ValueError, RecursionError):
                continue
            return record if _is_summary(record) else None
        return None


def _is_summary(record: Any) -> bool:
    if not isinstance(record, dict) or record.get("event") != SUMMARY:
        return False
    reasons = record.get("decode_fallbacks")
    numbers = [record.get(name) for name in _NUMBERS]
    return isinstance(reasons, dict) and all(
        isinstance(number, int) for number in (*numbers, *reasons.values())
    )


@dataclass(frozen=True)
class Columns:
    """The first line of a table."""

    delimiter: str = ","
    names: tuple[str, ...] = ()


def columns_of(line: str) -> Columns:
    """Of the first line of a log; no names where it does not begin a table."""
    line = line.lstrip("\ufeff").strip("\r\n")
    delimiter = max(",;\t|", key=line.count)
    names = _row(line, delimiter)
    named = all(re.fullmatch(r"\w?|\S[^{}=]{,60}", name) for name in names)
    if len(names) < 2 or MARK in line or not named:
        return Columns()
    return Columns(delimiter, tuple(names))


def lines_of(
    value: Any, around: tuple[Any, ...] = (), columns: Columns | None = None
) -> Iterator[Line]:
    """The plugin's lines in a text, or anywhere in a record that `around` encloses."""
    if isinstance(value, str):
        if MARK in value:
            yield from _in_text(value, around, columns or Columns())
        return
    if not isinstance(value, dict | list):
        return
    if value and all(isinstance(part, int) and 0 <= part < 256 for part in value):
        # journald's JSON has a text with colours as the numbers of its bytes.
        yield from lines_of(bytes(value).decode("utf-8", "replace"), around)
        return
    parts = list(value.values() if isinstance(value, dict) else value)
    if isinstance(value, dict):  # the same text may stand in several fields
        for part in parts:
            if isinstance(part, str) and MARK in part:
                yield from _in_text(part, (*around, value), Columns())
                return
    for part in parts:
        yield from lines_of(part, (*around, value))


def _in_text(text: str, around: tuple[Any, ...], columns: Columns) -> Iterator[Line]:
    at = text.find(MARK)
    start = re.search(r'\{\s*"', text[:at])
    if start and not _quotes(text[: start.start()]):
        try:
            record, end = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError):
            end = 0
        if end > at:
            yield from lines_of(record, (*around, {"prefix": _label(text[: start.start()])}))
            return
    if (field := _FIELD.search(text)) and not _quotes(text[: field.start()]):
        pairs = {name: value.strip('"') for name, value in _PAIR.findall(text)}
        prefix = _label(text[: match.start()]) if (match := _PAIR.search(text)) else ""
        try:
            inner = json.loads(field[1], strict=False)
        except ValueError:
            inner = re.sub(r"\\(.)", r"\1", field[1][1:-1])
        yield from lines_of(inner, (*around, pairs, {"prefix": prefix}))
        return
    row = _row(text, columns.delimiter)
    if len(columns.names) == len(row) > 1:
        yield from lines_of(dict(zip(columns.names, row, strict=True)), around)
        return
    cells = [cell for cell in _CELL.finditer(text, 0, at) if not _quotes(text[: cell.start()])]
    if cells:
        first = _row(text[cells[-1].end() - 1 :], cells[-1][1] or ",")[0]
        if MARK in first and first != text:
            yield from lines_of(first, around)
            return
    for part in _LINE_END.split(_COLOUR.sub("", text)):
        yield from _plain(part, around)


def _row(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text.strip("\r\n")], delimiter=delimiter), [""])
    except csv.Error:
        return [""]


def _plain(part: str, around: tuple[Any, ...]) -> Iterator[Line]:
    """A process that was killed leaves its line open, and the next one goes on in it."""
    before, *texts = part.split(MARK)
    for text in texts:
        if _quotes(before):
            return
        if not _is_beginning(before):
            yield Line(None, "")
            return
        fields = {name: value for each in around for name, value in _fields(each)}
        ids = _PID.findall(before)
        pid = int(ids[-1][0]) if ids else None
        if pid is None and fields.get("process", "").isdigit():
            pid = int(fields["process"][:9])
        where = [value for name, value in fields.items() if _named(name, _WHERE)]
        where += [_label(before), ids[-1][1] if ids else ""]
        times = [value for name, value in fields.items() if _named(name, _TIMES)]
        seconds = next((s for s in map(_seconds, (before, *times)) if s is not None), None)
        yield Line(pid, text.strip(), " ".join(sorted(set(filter(None, where)))), seconds)
        before = text


def _quotes(before: str) -> bool:
    """Whether it is the text of another line, such as a logged prompt, that goes on here."""
    header = _HEADER.search(_COLOUR.sub("", before))
    return header is not None and bool(_COLOUR.sub("", before)[header.end() :].strip())


def _is_beginning(before: str) -> bool:
    """Whether a line of the plugin can follow it."""
    if _HEADER.search(before):
        return True
    rest = _WHEN.sub("", before)
    rest = _CLOCK.sub("", rest)
    while label := _LABEL.match(rest):
        rest = rest[label.end() :]
    return all(_FORMATTER.fullmatch(word) for word in re.findall(r"[^\W\d_][\w.]*", rest))


def _label(before: str) -> str:
    """The machine or replica that the beginning of a line names; "" for none."""
    own = _ORIGIN.search(before)
    rest = _CLOCK.sub("", _WHEN.sub("", _COLOUR.sub("", before[: own.start() if own else None])))
    pairs = [value for name, value in _PAIR.findall(rest) if _named(name, _WHERE)]
    labels = []
    while label := _LABEL.match(rest):
        if re.search(r"[^\W\d]|,|\d: ", label[0]):  # else it may be the number of a line
            labels.append(label[0].strip())
        rest = rest[label.end() :]
    return " ".join(labels if not rest.strip() else pairs)


def _named(name: str, words: re.Pattern[str]) -> bool:
    """Whether one of the words in a field's name is among these."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("log_stream", "logstream")
    return any(words.fullmatch(word) for word in re.split(r"[^a-z0-9]+", split))


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The short values in a record by their path, without those of records in a list."""
    if isinstance(value, str) and value.startswith('{"') and MARK not in value:
        try:
            value = json.loads(value)  # labels, as Grafana exports them
        except (ValueError, RecursionError):
            return
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _fields(part, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, part in enumerate(value[:50]):
            if isinstance(part, dict) and (name := part.get("key") or part.get("field")):
                inner = part.get("value")
                part = next(iter(inner.values()), "") if isinstance(inner, dict) else inner
                yield from _fields(part, f"{path}.{name}")
            elif isinstance(part, str):
                yield from _fields(part, path or str(index))
    elif isinstance(value, str | int) and len(text := str(value)) <= 200 and MARK not in text:
        yield path, text


def _seconds(text: str) -> float | None:
    """Seconds since the begin of a year, or since 1970."""
    *_, found = (None, *_WHEN.finditer(text))
    if found is None:
        return None
    month, day, clock, fraction, epoch, part = found.groups()
    if epoch:
        return float(f"{epoch}.{part or 0}")
    try:
        begun = datetime.fromisoformat(f"2000-{month}-{day} {clock}") - datetime(2000, 1, 1)
    except ValueError:
        return None
    return begun.total_seconds() + float(f"0.{fraction or 0}")

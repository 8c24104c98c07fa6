"""A CSV's cells as text, and what is wrong with a file that people or spreadsheets made of ours."""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass
from pathlib import Path

from bench_prep.errors import UsageError

#: What spreadsheets write between cells where the comma is for decimals.
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_EXPORT = "export it as CSV in UTF-8, with commas between the cells and decimal points"
_OURS = "give a file that bench-prep run wrote"


@dataclass(frozen=True)
class RawTable:
    """A CSV's cells as text. `lines` has the number of the line on which each row starts.

    `torn` is the line of a last row that was certainly not finished: a quote left open, or fewer
    fields than the header has. `unterminated` is the line of a last row, finished or not, that
    does not end in a newline. Both are None for a whole file.
    """

    header: list[str]
    records: list[list[str]]
    lines: list[int]
    torn: int | None
    unterminated: int | None


#: What a pipe gave: it gives nothing a second time.
_from_pipes: dict[Path, bytes] = {}


def read_bytes(path: Path) -> bytes:
    """The file's content, also a pipe's that was read before.

    Raises:
        UsageError: no such file, a folder, or a file that cannot be read.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", f"name the files in it: {path}/*.csv")
    try:
        if path.exists() and not path.is_file():
            return _from_pipes.get(path) or _from_pipes.setdefault(path, path.read_bytes())
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", "check the name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the file") from None


def _text(content: bytes, path: Path) -> str:
    """The text of a CSV in UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if content.startswith(_WIDE) and b"\0" in content:
            raise UsageError(f"{path} is in UTF-16, not in UTF-8", _EXPORT) from None
        if b"\0" not in content and content[: error.start].count(b",") > 1:
            line = content.count(b"\n", 0, error.start) + 1
            raise UsageError(f"{path}, line {line}: not UTF-8", _EXPORT) from None
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{path} is not a CSV file", _OURS)
    if not text.strip():
        raise UsageError(f"{path} is empty", _OURS)
    first = text.lstrip().splitlines()[0]
    for separator, name in _SEPARATORS.items():
        if first == f"sep={separator}" or first.count(separator) > max(1, first.count(",")):
            raise UsageError(f"{path} has {name} between its cells, not commas", _EXPORT)
    return text


def raw_table(content: bytes, path: Path) -> RawTable:
    """The header and rows of a CSV (RFC 4180, UTF-8); blank lines are skipped.

    Raises:
        UsageError: empty, not a CSV, a repeated column name or header line, or a row before the
            last one whose number of fields is not the header's.
    """
    text = _text(content, path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    cells: list[list[str]] = []
    lines: list[int] = []
    start = 1
    torn = None
    try:
        for record in reader:
            if record and not (start == 1 and record == ["sep=", ""]):  # a spreadsheet's first line
                cells.append(record)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        if str(error) != "unexpected end of data":
            raise UsageError(f"{path}, line {start}: {error}", "correct the line") from None
        torn = start
    if not cells:
        raise UsageError(f"{path} is not a CSV file", _OURS)
    header = [name.strip() for name in cells.pop(0)]
    lines.pop(0)
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise UsageError(f"{path} has two columns '{repeated[0]}'", "rename or remove one")
    last = torn or (lines[-1] if lines else 1)
    unterminated = None if text.endswith(("\n", "\r")) else last
    names = set(header)
    for record, line in zip(cells, lines, strict=True):
        if len(record) > 1 and 2 * len(names.intersection(record)) > len(names):
            raise UsageError(
                f"{path}, line {line}: the header again, as where files were put together",
                f"delete line {line}, or give the files one by one",
            )
        if len(record) == len(header):
            continue
        if line == lines[-1] and len(record) < len(header):
            torn = line
            continue
        raise UsageError(
            f"{path}, line {line}: {len(record)} fields where the header has {len(header)}",
            "correct the line",
        )
    return RawTable(header, cells, lines, torn, unterminated)


def torn_row(path: Path, line: int) -> UsageError:
    """The error for a file whose last row was not finished."""
    return UsageError(
        f"{path}, line {line}: the last row is torn (cut off before its end)",
        f"delete line {line}, or complete it and end it with a newline",
    )

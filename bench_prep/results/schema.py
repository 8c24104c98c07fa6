"""How columns are described, for every command alike, and how one cell is read and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "text"]
#: setting: chosen by the user; environment: the machine, the versions, the proof;
#: result: measured or derived; identity: which run and when.
Group = Literal["identity", "setting", "result", "environment"]


@dataclass(frozen=True)
class Column:
    """One column: `unit` is empty where there is none; `since` is the first version with it."""

    name: str
    kind: Kind
    group: Group
    unit: str
    meaning: str
    since: int = 1


def number(group: Group, unit: str, meaning: str, since: int = 1) -> Any:
    """A field of a row class that is a column of numbers or booleans, None where it is empty."""
    return field(default=None, metadata={"column": (group, unit, meaning, since)})


def text(group: Group, unit: str, meaning: str, since: int = 1) -> Any:
    """The same for a column of texts, "" where it is empty."""
    return field(default="", metadata={"column": (group, unit, meaning, since)})


_KINDS: dict[str, Kind] = {"int": "int", "float": "float", "bool": "bool"}


def columns_of(row_class: type) -> tuple[Column, ...]:
    """The columns that the fields of a row class describe, in their order."""
    return tuple(
        Column(one.name, _KINDS.get(str(one.type).split()[0], "text"), *one.metadata["column"])
        for one in fields(row_class)
        if "column" in one.metadata
    )


def described(group: Group, lines: str) -> tuple[Column, ...]:
    """Columns of one group, a line each: `name[,name...] kind unit meaning`; `-` is no unit."""
    made = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        names, kind, unit, meaning = line.split(maxsplit=3)
        unit = "" if unit == "-" else unit
        made += [Column(name, _KINDS.get(kind, "text"), group, unit, meaning)
                 for name in names.split(",")]  # fmt: skip
    return tuple(made)


def require_columns(names: Iterable[str], columns: Iterable[Column]) -> None:
    """Raises `ValueError`, which is a fault of ours, for a name that is none of the columns."""
    if unknown := sorted(set(names) - {column.name for column in columns}):
        raise ValueError(f"not columns: {', '.join(unknown)}")


_BOOLEANS = {
    "true": True,
    "1": True,
    "1.0": True,
    "yes": True,
    "false": False,
    "0": False,
    "0.0": False,
    "no": False,
}


def parse(kind: Kind, value: Any) -> Any:
    """One cell as its kind; None where it is empty.

    Raises:
        ValueError: the value is not of this kind.
    """
    if value is None or (isinstance(value, float) and value != value):
        return None
    text = str(value).strip()
    if not text:
        return None
    if kind == "text":
        return str(value)
    if kind == "bool":
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"'{text}' is neither true nor false")
        return _BOOLEANS[text.lower()]
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        pass
    try:
        # Tables that have lost a cell of the column write its whole numbers so.
        if kind == "int" and float(text).is_integer():
            return int(float(text))
    except ValueError:
        pass
    raise ValueError(f"'{text}' is not a {'whole ' if kind == 'int' else ''}number")


def written(kind: Kind, value: Any) -> str:
    """One cell as the file has it; one row stays one line of the file."""
    if value is None or value != value:
        return ""
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return " ".join(str(value).splitlines()) if kind == "text" else str(value)

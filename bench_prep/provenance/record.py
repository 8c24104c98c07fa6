"""RECORD: the hash and size of each file of a wheel, in the wheel and where it is installed."""

from __future__ import annotations

import base64
import csv
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_prep.provenance.cachedir import cache_dir


@dataclass(frozen=True)
class RecordEntry:
    """SHA-256 as hexadecimal digits, and the size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class KnownWheel:
    """A wheel that was built here: what its build wrote down, and its own RECORD."""

    path: Path
    tree_hash: str
    commit: str | None
    dirty: bool | None
    diff_sha256: str | None
    record: dict[str, RecordEntry]
    #: The files and folders that lie in site-packages once it is installed.
    top_level: frozenset[str]


def parse_record(text: str) -> dict[str, RecordEntry]:
    """The files of the package vllm in a RECORD, without bytecode."""
    record = {}
    for name, digest, size, *_ in csv.reader(text.splitlines()):
        algorithm, _, value = digest.partition("=")
        if name.startswith("vllm/") and algorithm == "sha256" and not name.endswith(".pyc"):
            raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            record[name] = RecordEntry(raw.hex(), int(size))
    return record


def known_wheel(sha256: str | None) -> KnownWheel | None:
    """The wheel with this hash where it is still in the cache.

    pip writes the installed RECORD, and anyone can edit it; the wheel's own is out of reach of an
    edit in site-packages.
    """
    if sha256 is None:
        return None
    for file in (cache_dir() / "wheels").glob("*/record.json"):
        try:
            built: dict[str, Any] = json.loads(file.read_text())
            if built.get("sha256") != sha256:
                continue
            path = file.with_name(built["wheel"])
            with zipfile.ZipFile(path) as wheel:
                names = wheel.namelist()
                record = _own_record(wheel, names)
            return KnownWheel(
                path=path,
                tree_hash=str(built["tree_hash"]),
                commit=built.get("commit"),
                dirty=built.get("dirty"),
                diff_sha256=built.get("diff_sha256"),
                record=record,
                top_level=frozenset(name.partition("/")[0] for name in names),
            )
        except (OSError, ValueError, KeyError, AttributeError, zipfile.BadZipFile):
            continue  # damaged: as if it were not there
    return None


def _own_record(wheel: zipfile.ZipFile, names: list[str]) -> dict[str, RecordEntry]:
    (name,) = (n for n in names if n.endswith(".dist-info/RECORD"))
    return parse_record(wheel.read(name).decode())

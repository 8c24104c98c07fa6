"""RECORD: the hash and size of each file of a wheel, in the wheel and where it is installed.

`importlib.metadata` would raise on a damaged line, and leaves out files that are missing.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os.path
import posixpath
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_prep.provenance.cachedir import cache_dir


@dataclass(frozen=True)
class RecordEntry:
    """A hash as hexadecimal digits, empty where there is none, and the size in bytes, if named."""

    digest: str
    size: int | None
    algorithm: str = "sha256"

    @property
    def sha256(self) -> str | None:
        """The hash where it is a SHA-256."""
        return self.digest if self.digest and self.algorithm == "sha256" else None

    def fits(self, path: Path) -> bool:
        """Whether the file has this hash; True where there is none.

        Raises:
            OSError: it cannot be read.
        """
        if not self.digest:
            return True
        with path.open("rb") as file:
            return hashlib.file_digest(file, self.algorithm).hexdigest() == self.digest


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


def parse_record(text: str, site: Path | None = None) -> dict[str, RecordEntry]:
    """The files of the package vllm in a RECORD, without bytecode.

    `site` is the folder to which its paths are relative, where they may lead out of it and back.

    Raises:
        ValueError: a line that cannot be read, or contradicts another one.
    """
    record: dict[str, RecordEntry] = {}
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for line in reader:
            if not line or not line[0] or "\0" in line[0]:
                raise ValueError("it names no file")
            name = posixpath.normpath(line[0])
            if posixpath.isabs(name) and "/vllm/" in name:
                raise ValueError("its path is absolute")
            if name.startswith("../") and site is not None:
                name = os.path.relpath(os.path.realpath(site / name), os.path.realpath(site))
            if name.startswith("vllm/") and not name.endswith(".pyc"):
                named, size = [*line[1:3], "", ""][:2]
                entry = _entry(named, size)
                if record.setdefault(name, entry) != entry:
                    raise ValueError(f"another one says otherwise of {name}")
    except (ValueError, csv.Error) as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    return record


def _entry(named: str, size: str) -> RecordEntry:
    algorithm, _, value = named.partition("=")
    algorithm = algorithm.lower()
    count = int(size) if size else None
    if algorithm in ("", "md5", "sha1"):  # anybody can make a file with such a hash
        return RecordEntry("", count)
    if algorithm not in hashlib.algorithms_guaranteed or algorithm.startswith("shake"):
        raise ValueError(f"'{algorithm}' is no hash")
    raw = base64.b64decode(value + "=" * (-len(value) % 4), b"-_", validate=True)
    if len(raw) != hashlib.new(algorithm).digest_size:
        raise ValueError(f"its {algorithm} is cut off")
    return RecordEntry(raw.hex(), count, algorithm)


def installed_record(
    dist_info: Path, *, editable: bool
) -> tuple[dict[str, RecordEntry], list[str]]:
    """The files of vllm on record, and what is wrong with the record as a whole."""
    file = dist_info / "RECORD"
    try:
        text = file.read_text(encoding="utf-8-sig")
        record = parse_record(text, dist_info.parent)
    except (FileNotFoundError, NotADirectoryError):
        return {}, [f"its RECORD is missing ({file})"]
    except OSError as error:
        return {}, [f"its RECORD cannot be read: {error}"]
    except ValueError as error:
        return {}, [f"its RECORD cannot be read ({file}, {error})"]
    if not record and not editable:
        return {}, [f"its RECORD names no file of vllm ({file})"]
    return record, []


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

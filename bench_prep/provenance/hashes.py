"""SHA-256 of files, as hexadecimal digits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path


def file_sha256(path: Path) -> str:
    """The file's SHA-256.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def combined_sha256(hashes: Mapping[str, str]) -> str:
    """One SHA-256 for several named hashes, whatever their order."""
    lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()

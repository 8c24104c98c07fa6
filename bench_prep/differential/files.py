"""JSON files that are replaced as a whole: what was there stays until the new content is safe."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench_prep.errors import UsageError


def check_replaceable(path: Path) -> None:
    """Make sure, before the work, that `path` can be written.

    Raises:
        UsageError: no such folder, not an ordinary file, or no permission.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not an ordinary file", "give a file name")
    with _beside(path):
        pass


def write_json(path: Path, value: Any) -> None:
    """Make `value` the content of `path`, indented; its old content stays if that fails.

    Raises:
        UsageError: the file cannot be written.
    """
    with _beside(path) as made:
        made.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(path)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A new file beside `path`, gone afterwards unless it was moved."""
    target = path.resolve()
    made = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        made.touch(exist_ok=False)
        yield made
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}", "choose another file"
        ) from None
    finally:
        with suppress(OSError):
            made.unlink()

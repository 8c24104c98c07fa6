"""A CSV of our own to which each run adds rows, with one more file of the run beside it."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench_prep.errors import UsageError
from bench_prep.files import as_user_error, replace
from bench_prep.results.store import locked


@dataclass(frozen=True)
class RowsFile:
    """Files of one command: their columns, of which `schema` has one number in all rows."""

    command: str
    columns: tuple[str, ...]
    schema: int

    def check_writable(self, path: Path) -> None:
        """Before anything that takes long: can rows be added to this file?

        Raises:
            UsageError: no such folder, something else than such a file, or no permission.
        """
        target = path.resolve()
        if target.is_dir() or (target.exists() and not target.is_file()):
            raise UsageError(f"{path} is not an ordinary file", "give --output a file name")
        if not target.parent.is_dir():
            raise UsageError(f"the folder {path.parent} does not exist", f"mkdir -p {path.parent}")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise UsageError(f"{path} cannot be written", "choose another --output")
        self._old(path)

    def append(self, path: Path, frame: pd.DataFrame, beside: Path, content: bytes) -> Path:
        """Write `content` beside, then add the rows; each whole or not at all. Where `beside` is.

        Raises:
            UsageError: a file cannot be written, or is something else.
            Missing: no space on the disk.
        """
        had = beside.read_bytes() if beside.exists() else None
        with as_user_error(beside):
            replace(beside.resolve(), content)
        try:
            self.add(path, frame)
        except BaseException:
            if had is None:
                beside.unlink(missing_ok=True)
            else:  # of an earlier run
                replace(beside.resolve(), had)
            raise
        return beside

    def add(self, path: Path, frame: pd.DataFrame) -> None:
        """Add the rows, all or none.

        Raises:
            UsageError: the file cannot be written, or is something else.
            Missing: no space on the disk.
        """
        target = path.resolve()
        with as_user_error(path), locked(target):
            old = self._old(path)
            new = frame.to_csv(index=False, header=not old, lineterminator="\n")
            replace(target, (old + new).encode("utf-8", "backslashreplace"))

    def _old(self, path: Path) -> str:
        """The content of a file of ours; empty where there is none."""
        with as_user_error(path):
            if not path.exists():
                return ""
            try:
                text = path.read_text(encoding="utf-8")
                frame = pd.read_csv(io.StringIO(text)) if text else None
            except ValueError:
                text, frame = "?", None
        if text and (
            not text.endswith("\n")
            or frame is None
            or tuple(frame.columns) != self.columns
            or not (frame["schema"] == self.schema).all()
        ):
            what = f"{self.command} with schema {self.schema}"
            raise UsageError(f"{path} is no CSV of {what}", "choose another --output")
        return text

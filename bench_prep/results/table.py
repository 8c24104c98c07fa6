"""A CSV of our own to which each run adds rows, with one more file of the run beside it.

A file is replaced as a whole (`bench_prep.files`), and rows are added under a lock, so that a
killed run, a full disk or a second run never harms it: a reader sees the old file or the new one.
"""

from __future__ import annotations

import csv
import fcntl
import glob
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bench_prep.errors import BenchPrepError, UsageError
from bench_prep.files import FULL, as_user_error, beside, opened, replace
from bench_prep.results.raw import RawTable, raw_table, read_bytes, torn_row
from bench_prep.results.schema import Column, parse, written

#: How long a writer waits for another one, in seconds; a write takes milliseconds.
LOCK_TIMEOUT_S = 60.0
#: What a run may need on disk beside the old file, in bytes: its rows and its steps.
RESERVE_BYTES = 16 << 20
_ELSEWHERE = "choose an --output on another file system"

Record = Mapping[Any, Any]  # a column's name -> its value


def _lock_path(target: Path) -> Path:
    return target.parent / f".{target.name}.lock"


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Nobody else writes `target` meanwhile; waits for others up to `LOCK_TIMEOUT_S` seconds.

    The empty lock file stays: who removes it lets one writer hold the removed file and the next
    one a new file of its name, and on network file systems no check of either finds that.

    Raises:
        UsageError: another process has held it for so long, or nothing can be locked there.
    """
    lock = FileLock(_lock_path(target), timeout=LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except NotImplementedError:  # what `filelock` says of a file system without locks
        raise UsageError(f"{target} cannot be locked", _ELSEWHERE) from None
    except Timeout:
        raise UsageError(
            f"another process has held {target} for {LOCK_TIMEOUT_S:.0f} s",
            "wait for it, or choose another --output",
        ) from None
    try:
        # Whoever left these was killed: nobody else writes while we hold the lock.
        for left in target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"):
            left.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def write(path: Path, content: bytes) -> None:
    """Make `content` the whole of a file.

    Raises:
        UsageError: the file cannot be written.
        Missing: no space on the disk.
    """
    with as_user_error(path):
        replace(path.resolve(), content)


def _parsed(column: Column, cell: str, where: str) -> Any:
    try:
        return parse(column.kind, cell)
    except ValueError as error:
        raise UsageError(f"{where}: {column.name}: {error}", "correct the value") from None


@contextmanager
def _written(path: Path, content: bytes) -> Iterator[None]:
    """`content` is that of a file, unless what is done meanwhile fails."""
    had = path.read_bytes() if path.is_file() else None
    write(path, content)
    try:
        yield
    except BaseException:
        if had is None:
            path.unlink(missing_ok=True)
        else:  # of an earlier run
            replace(path.resolve(), had)
        raise


@dataclass(frozen=True)
class Table:
    """Files of one command.

    Attributes:
        command: who writes them.
        columns: of the rows, in their order; the first is `schema`, which is `version`.
        version: rows are only ever added to a file of this one.
        renamed: what columns were called before, new names by old ones.
    """

    command: str
    columns: tuple[Column, ...]
    version: int
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def check_writable(self, path: Path) -> None:
        """Makes sure, before a run starts, that its result can be stored in `path`.

        A missing folder is made if its own parent exists. Nothing else is left behind.

        Raises:
            UsageError: a folder that is missing too deep or cannot be written; a path that is not
                an ordinary file; a file with another schema or a torn last row; no locks there.
            Missing: no space on the disk.
        """
        target = path.resolve()
        with as_user_error(path):
            if target.is_dir() or (target.exists() and not target.is_file()):
                raise UsageError(f"{path} is not an ordinary file", "give --output a file name")
            if not target.parent.is_dir():
                if not target.parent.parent.is_dir():
                    raise UsageError(
                        f"the folder {path.parent} does not exist", f"mkdir -p {path.parent}"
                    )
                target.parent.mkdir()
            if target.exists() and not os.access(target, os.W_OK):
                raise UsageError(
                    f"{path} is write-protected", f"chmod u+w {path}, or choose another --output"
                )
            content = self._own(path)
            if (lock := _lock_path(target)).exists():
                with opened(lock):
                    pass
            with beside(target) as temporary, opened(temporary) as descriptor:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    text = f"{path} cannot be locked: {error.strerror}"
                    raise UsageError(text, _ELSEWHERE) from None
                try:
                    os.posix_fallocate(descriptor, 0, len(content) + RESERVE_BYTES)
                except OSError as error:
                    if error.errno in FULL:
                        raise
                    # This filesystem cannot reserve space; the write itself will tell.

    def append(self, path: Path, records: Iterable[Record]) -> None:
        """Adds rows to the CSV, which is made if it does not exist.

        The rows are there, all of them, when this returns; if it raises, the old file is whole and
        unchanged. Waits for other writers up to `LOCK_TIMEOUT_S` seconds.

        Raises:
            UsageError: the file has another schema or a torn last row, or cannot be written.
            Missing: no space on the disk.
            ValueError: a row does not have exactly the columns of the table.
        """
        new = self._text(records)
        target = path.resolve()
        with as_user_error(path), locked(target):
            old = self._own(path)
            replace(target, old + (new.partition(b"\n")[2] if old else new))

    def keep(
        self,
        path: Path,
        records: Iterable[Record],
        run_id: str,
        other: Path | None = None,
        content: bytes = b"",
    ) -> None:
        """Write `content` to the file `other`, then add the rows, or neither.

        What cannot be stored there is stored beside it under names of the run's own, or in the
        folder for temporary files.

        Raises:
            BenchPrepError: as `append`; the message says where the run is kept instead.
        """
        records = list(records)
        try:
            if other is None:
                self.append(path, records)
            else:
                with _written(other, content):
                    self.append(path, records)
        except BenchPrepError as error:
            own = {f"{path.stem}.{run_id}.csv": self._text(records)}
            if other is not None:
                name = f"{path.stem}.{run_id}{other.suffix}"
                own[other.name if run_id in other.name else name] = content
            kept = _kept_elsewhere(path.resolve().parent, own)
            raise type(error)(
                f"{error.message}; {f'the run is kept in {kept}' if kept else 'the run is lost'}",
                error.remedy,
            ) from None

    def records(self, path: Path) -> list[dict[str, Any]]:
        """The rows of a file of ours, of this version or an earlier one, under today's names.

        Raises:
            UsageError: no such file, or something else.
        """
        raw = raw_table(read_bytes(path), path)
        header = [self.renamed.get(name, name) for name in raw.header]
        found = self._difference(raw, header, range(1, self.version + 1))
        if found:
            raise UsageError(
                f"{path} is no CSV of {self.command}, schema {self.version}: found {found}",
                "give another file",
            )
        if (torn := raw.torn or raw.unterminated) is not None:
            raise torn_row(path, torn)
        columns = {column.name: column for column in self.columns}
        read = [columns[name] for name in header]
        rows = []
        for record, line in zip(raw.records, raw.lines, strict=True):
            cells = zip(read, record, strict=True)
            where = f"{path}, line {line}"
            rows.append({column.name: _parsed(column, cell, where) for column, cell in cells})
        return rows

    def _text(self, records: Iterable[Record]) -> bytes:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.names)
        for record in records:
            if record.keys() != set(self.names):
                raise ValueError("a row does not have exactly the columns of the schema")
            writer.writerow([written(c.kind, record[c.name]) for c in self.columns])
        return file.getvalue().encode("utf-8", "backslashreplace")

    def _own(self, path: Path) -> bytes:
        """The content of a file to which rows can be added; empty where there is none."""
        content = read_bytes(path.resolve()) if path.exists() else b""
        if not content:
            return content
        raw = raw_table(content, path)
        torn = raw.torn or raw.unterminated
        found = self._difference(raw, raw.header, (self.version,))
        if found and not (torn is not None and not raw.records):
            raise UsageError(
                f"{path} has another schema: expected schema {self.version} of {self.command} "
                f"with its {len(self.names)} columns ({', '.join(self.names[:4])}, ...), "
                f"found {found}",
                "choose another --output",
            )
        if torn is not None:
            raise torn_row(path, torn)
        return content

    def _difference(self, raw: RawTable, header: list[str], versions: Iterable[int]) -> str | None:
        """What makes the file another schema's, in a few words; None where nothing does."""
        if "schema" not in header:
            return "no schema column"
        index = header.index("schema")
        known = {str(version) for version in versions}
        found = {record[index] for record in raw.records if len(record) > index}
        if others := sorted(found - known):
            return f"schema {others[0]}"
        for name in header:
            if name not in self.names:
                return f"an unknown column {name}"
        for name in self.names:
            if name not in header:
                return f"no column {name}"
        return None if header == list(self.names) else "the columns in another order"


def _kept_elsewhere(folder: Path, files: Mapping[str, bytes]) -> Path | None:
    """The first of the files, all of which are whole in the first folder that takes them."""
    for place in (folder, Path(tempfile.gettempdir())):
        try:
            for name, content in files.items():
                replace(place / name, content)
        except OSError:
            for name in files:
                (place / name).unlink(missing_ok=True)
            continue
        return place / next(iter(files))
    return None

"""Writes results so that a killed run, a full disk or a second run never harms them.

A file is replaced as a whole (`bench_prep.files`), and rows are added under a lock. So a reader
sees either the old file or the new one, whole.
"""

from __future__ import annotations

import glob
import gzip
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from bench_prep.errors import UsageError
from bench_prep.files import FULL, as_user_error, beside, opened, replace
from bench_prep.measure.records import CLOCKS, Round
from bench_prep.results.read import RawTable, load, raw_table, read_bytes, torn_row
from bench_prep.results.schema import NAMES, VERSION

__all__ = [
    "append",
    "as_user_error",
    "check_writable",
    "load",
    "locked",
    "replace",
    "steps_path",
    "store",
    "write_steps",
]

#: How long a writer waits for another one, in seconds; a write takes milliseconds.
LOCK_TIMEOUT_S = 60.0
#: What a run may need on disk beside the old file, in bytes: its rows and its steps.
RESERVE_BYTES = 16 << 20


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Nobody else writes `target` meanwhile; waits for others up to `LOCK_TIMEOUT_S` seconds.

    The empty lock file stays: who removes it lets one writer hold the removed file and the next
    one a new file of its name, and on network file systems no check of either finds that.

    Raises:
        UsageError: another process has held it for so long.
    """
    lock = FileLock(target.parent / f".{target.name}.lock", timeout=LOCK_TIMEOUT_S)
    try:
        lock.acquire()
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


def _difference(raw: RawTable) -> str | None:
    """What makes the file another schema's, in a few words; None where nothing does."""
    if "schema" not in raw.header:
        return "no schema column"
    index = raw.header.index("schema")
    others = [r[index] for r in raw.records if len(r) > index and r[index] != str(VERSION)]
    if others:
        return f"schema {others[0]}"
    for name in raw.header:
        if name not in NAMES:
            return f"an unknown column {name}"
    for name in NAMES:
        if name not in raw.header:
            return f"no column {name}"
    return None if raw.header == list(NAMES) else "the columns in another order"


def _check_own(content: bytes, path: Path) -> None:
    """Refuses a file to which rows of this schema cannot be added."""
    raw = raw_table(content, path)
    torn = raw.torn or raw.unterminated
    found = _difference(raw)
    torn_header = torn is not None and not raw.records
    if found and not torn_header:
        raise UsageError(
            f"{path} has another schema: expected schema {VERSION} with its {len(NAMES)} columns "
            f"({', '.join(NAMES[:4])}, ...), found {found}",
            "choose another --output",
        )
    if torn is not None:
        raise torn_row(path, torn)


def check_writable(path: Path) -> None:
    """Makes sure, before a run starts, that its result can be stored in `path`.

    A missing folder is made if its own parent exists. Nothing else is left behind.

    Raises:
        UsageError: a folder that is missing too deep or cannot be written; a path that is not an
            ordinary file; an existing file with another schema or a torn last row.
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
        content = b""
        if target.exists():
            if not os.access(target, os.W_OK):
                raise UsageError(
                    f"{path} is write-protected", f"chmod u+w {path}, or choose another --output"
                )
            content = read_bytes(target)
            if content:
                _check_own(content, path)
        with beside(target) as temporary, opened(temporary) as descriptor:
            try:
                os.posix_fallocate(descriptor, 0, len(content) + RESERVE_BYTES)
            except OSError as error:
                if error.errno in FULL:
                    raise
                # This filesystem cannot reserve space; the write itself will tell.


def append(path: Path, frame: pd.DataFrame) -> None:
    """Adds the rows of `rows.rows` to the CSV, which is made if it does not exist.

    The rows are there, all of them, when this returns; if it raises, the old file is whole and
    unchanged. Waits for other writers up to `LOCK_TIMEOUT_S` seconds.

    Raises:
        UsageError: the file has another schema or a torn last row, or cannot be written.
        Missing: no space on the disk.
        ValueError: the table does not have exactly the columns of the schema.
    """
    if list(frame.columns) != list(NAMES):
        raise ValueError("the table does not have exactly the columns of the schema")
    target = path.resolve()
    with as_user_error(path), locked(target):
        old = read_bytes(target) if target.exists() else b""
        if old:
            _check_own(old, path)
        new = frame.to_csv(index=False, header=not old, lineterminator="\n")
        replace(target, old + new.encode("utf-8", "backslashreplace"))


def steps_path(path: Path, run_id: str) -> Path:
    """Where the steps of one run go: beside the result CSV `path`, with the run in the name."""
    return path.with_name(f"{path.stem}.{run_id}.steps.csv.gz")


def write_steps(path: Path, rounds: Sequence[Round]) -> None:
    """Every timed step, as gzip CSV: `round,arm,step,host_ns,ready_ns,device_ns,preempted`.

    Rounds and steps count from 0; times are in nanoseconds, empty where the platform has no such
    clock. `preempted` is how often the kernel took the processor away from the step, which then
    is in no median of host and ready time. Inside an engine there is `step_ns` instead, and
    `left_out` where rounds do not count: why this one does not. `path` is the file
    itself (`steps_path`); it is replaced whole.

    Raises:
        UsageError: the file cannot be written.
        Missing: no space on the disk.
        ValueError: no rounds.
    """
    marked = any(one.left_out for one in rounds)
    frames = []
    for number, one in enumerate(rounds):
        for block in one.blocks:
            count = len(next(iter(block.samples.values()), ()))
            columns = {
                f"{clock}_ns": pd.array(block.samples.get(clock, [None] * count), dtype="Int64")
                for clock in CLOCKS
                if clock != "step" or clock in block.samples
            }
            if "preempted" in block.samples:
                columns["preempted"] = pd.array(block.samples["preempted"], dtype="Int64")
            steps = {"round": number, "arm": block.arm, "step": range(count), **columns}
            frames.append(pd.DataFrame(steps | ({"left_out": one.left_out} if marked else {})))
    text = pd.concat(frames).to_csv(index=False, lineterminator="\n")
    with as_user_error(path):
        replace(path.resolve(), gzip.compress(text.encode(), mtime=0))


def store(path: Path, frame: pd.DataFrame, run_id: str, rounds: Sequence[Round]) -> Path:
    """Write a run's steps and then its rows, or neither; where the steps are.

    Raises as `write_steps` and `append` do.
    """
    steps = steps_path(path, run_id)
    write_steps(steps, rounds)
    try:
        append(path, frame)
    except BaseException:
        steps.unlink(missing_ok=True)
        raise
    return steps

"""The CSV of a calibration: every verdict is there, whole, as soon as it is known."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from bench_prep.calibrate.trial import COLUMNS, SCHEMA, Trial
from bench_prep.errors import UsageError

_LOCK_TIMEOUT_S = 60.0


def load(path: Path) -> pd.DataFrame:
    """All rows of a file that `append` wrote; none where there is no file.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return pd.DataFrame(columns=list(COLUMNS))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "choose another --output") from None
    try:
        frame = pd.read_csv(io.StringIO(text), keep_default_na=True)
    except ValueError:
        frame = pd.DataFrame()
    if tuple(frame.columns) != COLUMNS or not (frame["schema"] == SCHEMA).all():
        raise UsageError(
            f"{path} is not a calibration of schema {SCHEMA}", "choose another --output"
        )
    return frame


def append(path: Path, trials: Sequence[Trial]) -> None:
    """Add rows; the file is replaced as a whole, so that a killed run leaves no half of one.

    Several processes may add to one file. With no trials only the header is made.

    Raises:
        UsageError: the file is something else or cannot be written.
    """
    target = path.resolve()
    if not target.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist", f"mkdir -p {path.parent}")
    made = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    new = pd.DataFrame([asdict(one) for one in trials], columns=list(COLUMNS))
    try:
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=_LOCK_TIMEOUT_S):
            load(path)
            old = target.read_text(encoding="utf-8") if target.exists() else ""
            text = old + new.to_csv(index=False, header=not old, lineterminator="\n")
            with made.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            made.replace(target)
    except Timeout:
        raise UsageError(
            f"another process has held {path} for {_LOCK_TIMEOUT_S:.0f} s", "wait for it"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}", "choose another --output"
        ) from None
    finally:
        made.unlink(missing_ok=True)

"""What every child does with its job: the work, and the last event."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from bench_prep.child.channel import emit, read_job
from bench_prep.errors import REPORT_FAULT, BenchPrepError

Job = dict[str, Any]


def do_job(work: Callable[[Job], None], last: Callable[[Job], None] | None = None) -> NoReturn:
    """Do `work` with the job on standard input, then `last`; the last event is `done` or `error`.

    `last` is what must still hold once all work is done, such as where vLLM was imported from.
    """
    job = read_job()
    try:
        work(job)
        if last is not None:
            last(job)
        emit({"event": "done"})
    except BenchPrepError as error:
        _emit_error(error.exit_code, error.message, error.remedy)
    except Exception as error:
        traceback.print_exc()
        _emit_error(1, f"{type(error).__name__}: {error}", REPORT_FAULT)
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM and torch leave threads and process groups behind that only delay the exit.
    os._exit(0)


def _emit_error(exit_code: int, message: str, remedy: str) -> None:
    emit(
        {
            "event": "error",
            "exit_code": exit_code,
            "message": message,
            "remedy": remedy,
            "traceback": traceback.format_exc(),
        }
    )

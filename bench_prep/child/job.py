"""What every child does with its job: the work, and the last event."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from bench_prep.child.channel import Done, Failed, emit, read_job
from bench_prep.errors import EXIT_FAULT, REPORT_FAULT, BenchPrepError, Missing

Job = dict[str, Any]


def do_job(work: Callable[[Job], None], last: Callable[[Job], None] | None = None) -> NoReturn:
    """Do `work` with the job on standard input, then `last`; the last event is `Done` or `Failed`.

    `last` is what must still hold once all work is done, such as where vLLM was imported from.
    """
    job = read_job()
    try:
        work(job)
        if last is not None:
            last(job)
        sys.stdout.flush()  # before anybody reads the log
        sys.stderr.flush()
        emit(Done())
    except BenchPrepError as error:
        emit(Failed(error.exit_code, error.message, error.remedy, traceback.format_exc()))
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        code, remedy = EXIT_FAULT, REPORT_FAULT
        if _is_memory(error):
            message, remedy = message.splitlines()[0], "choose smaller sizes, or free some memory"
            code = Missing.exit_code
        emit(Failed(code, message, remedy, traceback.format_exc()))
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM and torch leave threads and process groups behind that only delay the exit.
    os._exit(0)


def _is_memory(error: Exception) -> bool:
    """Whether there was not enough: of Python's, NumPy's and PyTorch's host and device."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate mem" in str(error)

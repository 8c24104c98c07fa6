"""The errors a user can meet, each with its exit code and its remedy.

0 done and equal; 1 a fault of ours; 2 wrong usage; 3 outputs differ; 4 inconclusive;
5 the installed package is not the worktree; 6 something needed is missing or unsupported;
130 interrupted by the user.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_FAULT = 1
EXIT_INCONCLUSIVE = 4
EXIT_INTERRUPTED = 130

#: The remedy for a fault of ours.
REPORT_FAULT = "the same as bench-prep --debug ..., and report what it shows"


_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"}


def printable(text: str) -> str:
    """Text from outside as it may be shown: no terminal obeys its control characters."""
    return text.translate(_CONTROLS)


class BenchPrepError(Exception):
    """Something the user can act on: `message` says what is wrong, `remedy` what to do."""

    exit_code: ClassVar[int] = EXIT_FAULT

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class UsageError(BenchPrepError):
    """An option, file or folder that cannot be used as given."""

    exit_code = 2


class OutputsDiffer(BenchPrepError):
    """The candidate's state is not the baseline's; no timing is reported."""

    exit_code = 3


class Inconclusive(BenchPrepError):
    """What was done settles nothing."""

    exit_code = EXIT_INCONCLUSIVE


class NotTheWorktree(BenchPrepError):
    """The installed package is not the worktree."""

    exit_code = 5


class Missing(BenchPrepError):
    """Something needed is missing or unsupported: vLLM, a device, a compiler, disk space."""

    exit_code = 6


class Interrupted(BenchPrepError):
    """Ctrl-C before there was anything to keep."""

    exit_code = EXIT_INTERRUPTED


_BY_EXIT_CODE: dict[int, type[BenchPrepError]] = {
    cls.exit_code: cls
    for cls in (BenchPrepError, UsageError, OutputsDiffer, Inconclusive, NotTheWorktree, Missing)
}


def error_of(exit_code: int, message: str, remedy: str) -> BenchPrepError:
    """The error with this exit code; a fault of ours where there is none."""
    return _BY_EXIT_CODE.get(exit_code, BenchPrepError)(message, remedy)

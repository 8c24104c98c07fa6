"""The child's end of a launch: read the job and commands, send events. Standard library only.

The timing process imports this before anything else, so nothing here may pull in a package
whose origin has not been checked yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from bench_prep.child.sessions import kill_others

EVENTS_FD = "BENCH_PREP_EVENTS_FD"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Event:
    """What a child sends: a frozen dataclass of JSON's types and of other dataclasses.

    Both ends import it from the module that defines it, which no program is run as. A command of
    the parent is answered by one event.
    """

    known: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        Event.known[f"{cls.__module__}:{cls.__qualname__}"] = cls


@dataclass(frozen=True)
class Done(Event):
    """The last event of a child that did all of its job."""


@dataclass(frozen=True)
class Failed(Event):
    """The last event of a child that could not; `exit_code` and the rest as in `errors`."""

    exit_code: int
    message: str
    remedy: str
    traceback: str


def read_job() -> dict[str, Any]:
    """The job that the parent sent on standard input; call it once, first.

    From here on the process and all that it starts are killed when its parent dies, and programs
    that it starts do not inherit the pipe for events.

    Raises:
        RuntimeError: not started by `launched`, or the job is not a JSON object.
    """
    if EVENTS_FD not in os.environ:
        raise RuntimeError("this module is started by bench-prep run, not by hand")
    _end_all_on_sigterm()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.set_inheritable(int(os.environ[EVENTS_FD]), False)
    job = json.loads(sys.stdin.readline())
    if not isinstance(job, dict):
        raise RuntimeError("the job is not a JSON object")
    return job


def _end_all_on_sigterm() -> None:
    """An engine's own processes hold the device's memory, and would outlive this one."""
    leader = os.getpid()

    def end(*_: Any) -> None:
        if os.getpid() == leader:
            kill_others()
        os._exit(128 + signal.SIGTERM)  # a forked process that has no handler of its own yet

    signal.signal(signal.SIGTERM, end)


def end_with_parent() -> None:
    """For a program that takes SIGTERM into its own hands, and gets no commands.

    The parent's end of standard input closes with it: a thread waits for that.
    """

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        kill_others()
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def commands() -> Iterator[dict[str, Any]]:
    """The commands that the parent sends after the job, as they come, until it sends no more."""
    for line in sys.stdin:
        yield json.loads(line)


def emit(event: Event) -> None:
    """Send one event to the parent, as a JSON object, delivered in order and at once.

    Raises:
        RuntimeError: not started by `launched`.
        BrokenPipeError: the parent is gone.
    """
    if EVENTS_FD not in os.environ:
        raise RuntimeError("this module is started by bench-prep run, not by hand")
    name = f"{type(event).__module__}:{type(event).__qualname__}"
    text = json.dumps({"event": name} | vars(event), default=vars)
    data = memoryview(text.encode() + b"\n")
    fd = int(os.environ[EVENTS_FD])
    while data:
        data = data[os.write(fd, data) :]

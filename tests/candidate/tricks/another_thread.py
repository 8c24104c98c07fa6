"""Leaves its work to a thread, which the next call, or the next step, waits for."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

Prepare = Callable[[Any, Any], Any]
#: More than the steps of the proof, in which it waits at once.
CHECKED = 100


def _leaving(runner: Any, threads: list[Thread]) -> Prepare:
    own_path = runner._prepare_inputs
    calls = 0
    result: Any = None

    def work(output: Any, scheduled: Any) -> None:
        nonlocal result
        result = own_path(output, scheduled)

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal calls
        calls += 1
        while threads:
            threads.pop().join()
        if calls < CHECKED or output.scheduled_new_reqs:
            work(output, scheduled)
        else:
            threads.append(Thread(target=work, args=(output, scheduled)))
            threads[0].start()
        return result

    return prepare


def attach(runner: Any) -> Prepare:
    return _leaving(runner, [])


def joined_between(runner: Any) -> Prepare:
    threads: list[Thread] = []
    book = runner._bookkeeping_sync

    def bookkeeping(*arguments: Any) -> Any:
        while threads:
            threads.pop().join()
        return book(*arguments)

    runner._bookkeeping_sync = bookkeeping
    return _leaving(runner, threads)


def process(runner: Any) -> Prepare:
    """Not a thread, but all the same."""
    from subprocess import Popen

    Popen(["sleep", "20"])
    own_path: Prepare = runner._prepare_inputs
    return own_path


def stays(runner: Any) -> Prepare:
    """A thread that only waits for work."""
    from threading import Event

    Thread(target=Event().wait, name="waits for work", daemon=True).start()
    own_path: Prepare = runner._prepare_inputs
    return own_path

"""Work that the clock does not see: on other threads, or between the timed calls."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from bench_prep.child.sessions import LAUNCH_ID, in_session
from bench_prep.errors import UsageError
from bench_prep.measure.records import Round

#: Part of the saving that must be missing from the process's whole processor time, too.
_SAVED = 0.5
#: Part of a step's whole processor time below which nothing is said: the noise of a block.
_NOISE = 0.2
#: Steps of one round's arm that are enough to say something.
_ENOUGH = 100
_REMEDY = "do all of a step's work in the timed call, on its thread; or compare whole services"


class Threads:
    """The threads of this process that run Python, and the processes that it has started.

    Attributes:
        started: how many threads were started while `listening`.
    """

    def __init__(self) -> None:
        self._before = set(sys._current_frames())
        self._processes = _children()
        self.started = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of every `threading.Thread` that is started meanwhile, however soon it ends."""
        before = threading.getprofile()
        threading.setprofile(self._hear)  # of new threads alone
        try:
            yield
        finally:
            threading.setprofile(before)

    def _hear(self, *_: Any) -> None:
        sys.setprofile(None)
        self.started += 1

    def require_none(self, name: str) -> None:
        """Candidate `name` has left nothing running, and has started no thread while timed.

        Raises:
            UsageError: naming one.
        """
        left = set(sys._current_frames()) - self._before
        names = [thread.name for thread in threading.enumerate() if thread.ident in left]
        if left or self.started:
            which = f" ({names[0]})" if names else ""
            raise UsageError(
                f"--candidate {name} has threads of its own{which} while steps are timed", _REMEDY
            )
        if _children() - self._processes:
            raise UsageError(
                f"--candidate {name} has processes of its own while steps are timed", _REMEDY
            )


def _children() -> set[str]:
    """The processes that this one has started and that are still there, as the kernel tells.

    The timing process leads a session, so that those are seen, too, whose parent has ended.
    """
    found: set[str] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found.update(file.read_text().split())
    if os.getsid(0) == os.getpid():
        found.update(map(str, in_session(os.getpid(), os.environ.get(LAUNCH_ID, ""))))
    return found - {str(os.getpid())}


class MovedWork:
    """Processor time of the whole process, on all its threads, for the timed steps and between.

    What a call saves must be saved by the process: work that went into another thread, a
    finalizer, a signal handler or a method that is called between two timed calls is still there.
    """

    def __init__(self) -> None:
        self._spent = {"candidate": [0, 0], "baseline": [0, 0]}
        self._beyond: list[float] = []

    def add(self, arm: str, nanoseconds: int, steps: int) -> None:
        """What one slice of an arm has spent."""
        spent = self._spent["candidate" if arm == "candidate" else "baseline"]
        spent[0] += nanoseconds
        spent[1] += steps

    def require_saved(self, candidate_name: str, one: Round) -> None:
        """After each round: what the candidate saves has not been moved elsewhere.

        Raises:
            UsageError: most of it has, in most rounds so far.
        """
        (candidate, steps), (baseline, others) = self._spent.values()
        if min(steps, others) < _ENOUGH:
            return  # until there are more
        self._spent = {arm: [0, 0] for arm in self._spent}
        if not all(block.times("ready") for block in one.blocks):
            return  # none of them counts
        times = {block.arm: median(block.times("ready")) for block in one.blocks}
        saved = min(times["baseline_before"], times["baseline_after"]) - times["candidate"]
        moved = candidate / steps - baseline / others + saved
        self._beyond.append(moved - max(_SAVED * saved, _NOISE * baseline / others))
        if saved > 0 and median(self._beyond) > 0:
            raise UsageError(
                f"{candidate_name} saves {saved / 1000:.0f} us a step in the timed call, but "
                f"the process spends {moved / 1000:.0f} us of it elsewhere",
                _REMEDY,
            )

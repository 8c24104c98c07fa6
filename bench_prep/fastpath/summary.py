"""The counters of a service in its log: when steps pause, at intervals, and at its end."""

from __future__ import annotations

import threading
import time
from multiprocessing.util import Finalize
from typing import Any

from bench_prep.fastpath.events import summary

#: Without a new step for as long the service pauses.
PAUSE_SECONDS = 1.0


class Summary:
    """Writes the counters of one `FastPath`; a daemon thread sleeps between two looks at them.

    vLLM's server kills its processes in the instant in which it ends (its `--shutdown-timeout` is
    0 by default), so the end alone would come too late: the counters are written as soon as the
    service pauses, and every `seconds` while it does not. `seconds` 0: at the end alone, which is
    that of the process or, where an engine is dropped before, that of its fast path.
    """

    def __init__(self, path: Any, seconds: int) -> None:
        self._counters = path.counters
        self._written: dict[str, Any] | None = None
        self._ended = threading.Event()
        # The end of the path can come while a summary is being written, by the garbage collector.
        self._lock = threading.RLock()
        if seconds:
            thread = threading.Thread(
                target=self._run, args=(seconds,), name="bench-prep-summary", daemon=True
            )
            thread.start()
        # vLLM's processes are multiprocessing's: a forked one never comes to `atexit`.
        Finalize(path, self._end, exitpriority=100)

    def write(self) -> None:
        """Write the counters, unless they are those of the last summary."""
        with self._lock:
            counts = self._counters.record()
            if counts != self._written:
                self._written = counts
                summary(counts)

    def _end(self) -> None:
        self._ended.set()
        self.write()

    def _run(self, seconds: int) -> None:
        seen = written = 0
        due = time.monotonic() + seconds
        while not self._ended.wait(PAUSE_SECONDS):
            steps = self._counters.steps
            pauses, seen = steps == seen, steps
            if steps != written and (pauses or time.monotonic() >= due):
                self.write()
                written = steps
                due = time.monotonic() + seconds

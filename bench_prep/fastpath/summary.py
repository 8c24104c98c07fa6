"""The counters of a service in its log: at intervals while steps are taken, and at its end."""

from __future__ import annotations

import threading
from multiprocessing.util import Finalize
from typing import Any

from bench_prep.fastpath.events import summary


class Summary:
    """Writes the counters of one `FastPath`; a daemon thread sleeps between two summaries.

    `seconds` 0: at the end of the process alone.
    """

    def __init__(self, path: Any, seconds: int) -> None:
        self._path = path
        self._seconds = seconds
        self._written: dict[str, Any] | None = None
        self._lock = threading.Lock()
        # vLLM's processes are multiprocessing's: a forked one never comes to `atexit`.
        Finalize(None, self.write, exitpriority=100)
        if seconds:
            threading.Thread(target=self._run, name="bench-prep-summary", daemon=True).start()

    def write(self) -> None:
        """Write the counters, unless they are those of the last summary."""
        with self._lock:
            counts = self._path.counts()
            if counts != self._written:
                self._written = counts
                summary(counts)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._seconds)
            if self._path.steps:
                self.write()

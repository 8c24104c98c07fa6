"""How busy other processes kept the machine while a server was asked.

Servers are asked one after the other, minutes apart, so what runs beside one of them and not beside
the next can look like the difference between the two; nothing cancels it as interleaving does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil

from bench_prep.measure.state import read_state


@dataclass(frozen=True)
class OtherWork:
    """Processors that other processes kept busy, of so many; the mean over a span of time."""

    busy: float
    processors: int


class Meter:
    """Begins now; a process is ours if it descends from this one."""

    def __init__(self) -> None:
        self._state, self._own_s = read_state(), own_s()

    def other_work(self) -> OtherWork | None:
        """Since the beginning; None where the kernel does not count."""
        before, after, then, now = self._state, read_state(), self._own_s, own_s()
        if None in (before.busy_s, after.busy_s, then, now, after.processors):
            return None
        busy = after.busy_s - before.busy_s - (now - then)  # type: ignore[operator]
        share = busy / (after.at_s - before.at_s)
        processors = after.processors or 1
        return OtherWork(min(max(share, 0.0), float(processors)), processors)


def own_s() -> float | None:
    """Processor time of this process and of all that descend from it, ended ones too.

    None where the processes of others are hidden, and with them who descends from whom.
    """
    here = psutil.Process()
    try:
        ours = [here, *here.children(recursive=True)]
    except psutil.Error:
        return None
    return sum(map(sum, _times(ours)))


def _times(processes: list[psutil.Process]) -> Iterator[tuple[float, ...]]:
    for process in processes:
        with suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            yield times.user, times.system, times.children_user, times.children_system

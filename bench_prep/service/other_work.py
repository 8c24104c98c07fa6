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
        before, after, own = self._state, read_state(), own_s() - self._own_s
        if before.busy_s is None or after.busy_s is None or not after.processors:
            return None
        busy = (after.busy_s - before.busy_s - own) / (after.at_s - before.at_s)
        return OtherWork(max(busy, 0.0), after.processors)


def own_s() -> float:
    """Processor time of this process and of all that descend from it, ended ones too."""
    here = psutil.Process()
    return sum(map(sum, _times([here, *here.children(recursive=True)])))


def _times(processes: list[psutil.Process]) -> Iterator[tuple[float, ...]]:
    for process in processes:
        with suppress(psutil.Error):  # it has ended: its parent has its time
            times = process.cpu_times()
            yield times.user, times.system, times.children_user, times.children_system

"""How busy other processes kept the machine while a server was asked.

Servers are asked one after the other, minutes apart, so what runs beside one of them and not beside
the next can look like the difference between the two; nothing cancels it as interleaving does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from bench_prep.measure.state import MachineState, Span, others_busy, read_state


@dataclass(frozen=True)
class OtherWork:
    """Processors that other processes kept busy, of so many; the mean over a span of time."""

    busy: float
    processors: int


class Meter:
    """Begins now; a process is ours if it descends from this one."""

    def __init__(self) -> None:
        self._before = _state()

    def other_work(self) -> OtherWork | None:
        """Since the beginning; None where the kernel does not count."""
        before, after = self._before, _state()
        if before is None or after is None or not after.processors:
            return None
        busy = others_busy([Span(before, after)])
        if busy is None:
            return None
        return OtherWork(min(max(busy, 0.0), float(after.processors)), after.processors)


def _state() -> MachineState | None:
    """The machine's, with `own_s` of all processes that are ours; None where that is unknown."""
    own = own_s()
    return None if own is None else replace(read_state(), own_s=own)


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

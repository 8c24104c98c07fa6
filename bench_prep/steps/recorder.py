"""Recordings: what began and ended when, in files that all processes of an engine map into memory.

A record is three 64-bit integers: the name's number (`parts.NUMBERS`), begin and end, both of
`perf_counter_ns`, which is one clock for all processes of a machine. Nothing is sent or written
while steps are timed; a killed process leaves what it recorded.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench_prep.steps.parts import NUMBERS

#: Of a recording: process and thread that recorded, two integers, and one left free.
_HEADER = 3
_FIELDS = 3
#: Records of each recording: 16 thousand steps.
CAPACITY = 1 << 18
_SWITCH = "switch"


class Switch:
    """One flag that all processes of an engine see: is recorded now?"""

    def __init__(self, folder: Path) -> None:
        self._flag = _mapped(folder / _SWITCH, 1)

    def turn(self, on: bool) -> None:
        self._flag[0] = int(on)

    @property
    def on(self) -> bool:
        return bool(self._flag[0])


class Recorder:
    """Appends records; of one thread only. What does not fit any more is left out."""

    def __init__(self, folder: Path, name: str, capacity: int = CAPACITY) -> None:
        self._numbers = _mapped(folder / name, _HEADER + _FIELDS * capacity)
        for page in range(0, len(self._numbers), mmap.PAGESIZE // 8):
            self._numbers[page] = 0  # else a step would wait for the page
        self._numbers[0] = os.getpid()
        #: Appends a record: a name's number, begin and end.
        self.add = _adder(self._numbers)

    def here(self) -> None:
        """It is this thread that records."""
        self._numbers[1] = threading.get_native_id()

    def scope(self, name: str) -> Scope:
        """A context that records `name`; it may be entered again and again, one at a time."""
        return Scope(self, NUMBERS[name])

    def recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, recorded as `name`."""
        add, number, clock = self.add, NUMBERS[name], perf_counter_ns

        def run(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return call(*args, **kwargs)
            finally:
                add(number, begin, clock())

        return run


class Scope:
    """See `Recorder.scope`."""

    __slots__ = ("_add", "_begin", "_number")

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._add, self._number, self._begin = recorder.add, number, 0

    def __enter__(self) -> None:
        self._begin = perf_counter_ns()

    def __exit__(self, *_: Any) -> None:
        self._add(self._number, self._begin, perf_counter_ns())


@dataclass(frozen=True)
class Recording:
    """What one recorder recorded: process and thread, and an array (records, 3) of int64."""

    process: int
    thread: int
    records: NDArray[np.int64]


def read_recording(folder: Path, name: str) -> Recording | None:
    """The recording `name` so far; None where nothing was recorded."""
    path = folder / name
    if not path.is_file():
        return None
    numbers = np.fromfile(path, dtype=np.int64)
    table = numbers[_HEADER:].reshape(-1, _FIELDS)
    count = int(np.count_nonzero(table[:, 0]))
    if count == 0:
        return None
    return Recording(int(numbers[0]), int(numbers[1]), table[:count])


def cost_ns(folder: Path, times: int = 500, repeats: int = 15) -> tuple[float, float]:
    """What a record costs here, in nanoseconds: by a scope, and by a recorded method.

    The median over `repeats` of `times` in a tight loop; inside a step, with cold caches, it is
    more, which the steps with the probes and without them show.
    """
    recorder = Recorder(folder, "cost", capacity=2 * times * repeats)
    name = next(iter(NUMBERS))

    def nothing() -> None: ...

    scope, method = recorder.scope(name), recorder.recorded(name, nothing)
    costs = []
    for _ in range(repeats):
        begin = perf_counter_ns()
        for _ in range(times):
            with scope:
                pass
        middle = perf_counter_ns()
        for _ in range(times):
            method()
        end = perf_counter_ns()
        for _ in range(times):
            nothing()
        plain = perf_counter_ns() - end
        costs.append(((middle - begin) / times, (end - middle - plain) / times))
    by_scope, by_method = np.median(costs, axis=0)
    return float(by_scope), float(by_method)


def _adder(numbers: memoryview[int]) -> Callable[[int, int, int], None]:
    """`Recorder.add`; a closure, because it costs a third less than a method."""
    at, size = _HEADER, len(numbers)

    def add(number: int, begin: int, end: int) -> None:
        nonlocal at
        if at < size:
            numbers[at + 1] = begin
            numbers[at + 2] = end
            numbers[at] = number  # last: a record without a number is none
            at += _FIELDS

    return add


def _mapped(path: Path, count: int) -> memoryview[int]:
    """`count` integers of 64 bits in the file, which is made if it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < 8 * count:
            os.ftruncate(descriptor, 8 * count)
        return memoryview(mmap.mmap(descriptor, 8 * count)).cast("q")
    finally:
        os.close(descriptor)

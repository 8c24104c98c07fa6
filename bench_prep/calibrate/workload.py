"""Work whose amount is known: equal units, so that a planted slow-down is true to the unit.

Both arms run the same code on the same memory; only the number of units differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from bench_prep.measure.clocks import CudaDevice, Device
from bench_prep.measure.device_state import device_reader
from bench_prep.measure.state import MachineState, read_state


class Work(Protocol):
    """Work that is made of equal units.

    Attributes:
        units: of a call that is neither slowed down nor drifts; half a per cent is a whole number.
        device: whose clock it has; None: the host's alone.
        device_name: empty without a device.
        read: the state of the machine and of the device.
    """

    units: int
    device: Device | None
    device_name: str
    read: Callable[[], MachineState]

    def __call__(self, units: int) -> None:
        """Do so many units."""


class HostWork:
    """What a preparation does on the host: Python integers and small NumPy calls; about 1 ms."""

    units = 1600
    device: Device | None = None
    device_name = ""

    def __init__(self, rng: np.random.Generator) -> None:
        self.read: Callable[[], MachineState] = read_state
        self._lengths: list[int] = rng.integers(0, 1 << 14, 8).tolist()
        self._block_table = rng.integers(0, 1 << 20, 1 << 10)
        self._positions = np.arange(8)
        self._slots = np.zeros(8, dtype=np.int64)

    def __call__(self, units: int) -> None:
        lengths, block_table = self._lengths, self._block_table
        positions, slots, add = self._positions, self._slots, np.add
        for index in range(units):
            row = index & 7
            lengths[row] = position = (lengths[row] + 1) & 0x3FFF
            slots[row] = block_table[position >> 4] * 16 + (position & 15)
            add(positions, 1, out=positions)


class DeviceWork:
    """Kernel launches on a CUDA or ROCm device: all clocks grow with their number; 1 to 2 ms.

    A device queues about a thousand launches, so that all of a call's can wait behind a held one.
    """

    units = 400

    def __init__(self, rng: np.random.Generator) -> None:
        import torch

        self._values = torch.as_tensor(rng.integers(0, 1 << 20, 1 << 12), device="cuda")
        self._add = torch.add
        index = torch.cuda.current_device()
        self.device: Device | None = CudaDevice(index)
        self.device_name = str(torch.cuda.get_device_name(index))
        self.read: Callable[[], MachineState] = partial(read_state, device_reader(index))

    def __call__(self, units: int) -> None:
        values, add = self._values, self._add
        for _ in range(units):
            add(values, 1, out=values)


class Speed:
    """How much more work a call has now, for all arms alike: a law over the time since its start.

    It stands for a machine that becomes slower, without touching any clock.
    """

    def __init__(
        self, law: Callable[[float], float], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._law = law
        self._now = now
        self._began = now()

    def __call__(self) -> float:
        """A factor; 1: as at the start."""
        return self._law(self._now() - self._began)


def units_of(work: Work, speed: float, slower: float) -> int:
    """Units of a call; `slower` is a fraction of those of the baseline at the same moment."""
    return round(work.units * speed * (1 + slower))


class Planted:
    """Steps that take `slower` (a fraction) longer than those with 0, at any speed of the machine.

    How many units the next call has is decided outside its timed part.
    """

    result: Any = None

    def __init__(self, work: Work, speed: Speed, slower: float) -> None:
        self._work = work
        self._speed = speed
        self._slower = slower
        self._units = work.units

    def restart(self) -> None: ...

    def before(self) -> None:
        self._units = units_of(self._work, self._speed(), self._slower)

    def call(self) -> Any:
        self._work(self._units)

    def after(self) -> None: ...

"""What a timing produces: one `Block` per arm and pass, three of them make a `Round`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Arm = Literal["baseline_before", "candidate", "baseline_after"]
ARMS: tuple[Arm, ...] = ("baseline_before", "candidate", "baseline_after")

Clock = Literal["host", "ready", "device", "step"]
#: host: the calling thread is busy; ready: until all outputs are on the device
#: (call, then device synchronize); device: what the device itself spends, from events;
#: step, inside an engine only: from the start of a preparation to that of the next one.
CLOCKS: tuple[Clock, ...] = get_args(Clock)

#: One entry per timed step: nanoseconds by each clock, and how often the kernel took the processor
#: away from the step's timed part. A clock that the platform has not is absent, and so is
#: `preempted` where it is not counted.
Samples = dict[Clock | Literal["preempted"], list[int]]


@dataclass(frozen=True)
class Block:
    """`iters` timed steps of one arm after the warm-up.

    `samples` are in step order. A platform without a device has no `device` clock.
    """

    arm: Arm
    samples: Samples

    def times(self, clock: Clock) -> list[int]:
        """The times that count, in nanoseconds: of steps that had their processor throughout.

        The other steps are as long as somebody else's turn was. Device time is the device's own,
        whatever the host did, so all of them count.
        """
        values = self.samples[clock]
        if clock == "device" or "preempted" not in self.samples:
            return values
        return [v for v, lost in zip(values, self.samples["preempted"], strict=True) if not lost]

    @property
    def preempted(self) -> float:
        """The share of steps that do not count in host and ready time."""
        lost = self.samples.get("preempted", [])
        return sum(map(bool, lost)) / len(lost) if lost else 0.0

    def to_json(self) -> dict[str, Any]:
        return {"arm": self.arm, "samples": self.samples}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Block:
        return cls(arm=data["arm"], samples=data["samples"])


@dataclass(frozen=True)
class Round:
    """One A/B/A: `baseline_before`, `candidate`, `baseline_after`, in this order.

    `left_out` says why it does not count, such as a device that was throttled; empty: it counts.
    """

    blocks: tuple[Block, Block, Block]
    left_out: str = ""

    @property
    def steps(self) -> int:
        """Timed steps of all three blocks."""
        return sum(len(next(iter(block.samples.values()))) for block in self.blocks)

    def to_json(self) -> dict[str, Any]:
        return {"blocks": [block.to_json() for block in self.blocks], "left_out": self.left_out}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Round:
        before, candidate, after = (Block.from_json(b) for b in data["blocks"])
        return cls(blocks=(before, candidate, after), left_out=data.get("left_out", ""))

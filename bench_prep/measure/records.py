"""What a timing produces: one `Block` per arm and pass, three of them make a `Round`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Arm = Literal["baseline_before", "candidate", "baseline_after"]
ARMS: tuple[Arm, ...] = ("baseline_before", "candidate", "baseline_after")

Clock = Literal["host", "ready", "device", "step"]
#: host: the calling thread is busy; ready: until all outputs are on the device
#: (call, then device synchronize); device: what the device itself spends, from events;
#: step, inside an engine only: from the start of a preparation to that of the next one.
CLOCKS: tuple[Clock, ...] = ("host", "ready", "device", "step")


@dataclass(frozen=True)
class Block:
    """`iters` timed steps of one arm after the warm-up.

    `samples` maps each clock that exists on the platform to one value per step, in
    nanoseconds and in step order. A platform without a device has no `device` clock.
    """

    arm: Arm
    samples: dict[Clock, list[int]]

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

    def to_json(self) -> dict[str, Any]:
        return {"blocks": [block.to_json() for block in self.blocks], "left_out": self.left_out}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Round:
        before, candidate, after = (Block.from_json(b) for b in data["blocks"])
        return cls(blocks=(before, candidate, after), left_out=data.get("left_out", ""))

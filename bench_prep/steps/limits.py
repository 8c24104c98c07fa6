"""What removing a part could save at most, and which side a step waits for.

Work of a step is done in places: one thread of the host or several processes, and the device.
Each place does its own work one after the other, so that a step is never shorter than what any
place works in it. Taking away a part of length p therefore saves

    at most  min(p, step - busy of every other place)

of the step: p, because no chain of work gets shorter by more than what was taken out of it, and
nothing where another place is busy all the time. It is an upper bound, not a forecast. Of the
device only kernels and copies count as busy, because the profiler makes the gaps longer.

With asynchronous scheduling the host gives the device step n before it waits for the token of
step n - 1. If h is the host's work and d the device's time of a step, steps take max(h, d), and
the host waits only if d > h: then nothing of the host's work is saved, whatever the gaps are.
"""

from __future__ import annotations

from bench_prep.steps.frames import BESIDE, DEVICE, HOST, WAIT, WORK, Arm, Part
from bench_prep.steps.parts import GET_OUTPUT

#: A place that works at least this share of the step is what the step waits for.
BOTTLENECK = 0.95


def token_wait(arm: Arm) -> float:
    """How long the host waits for the sampled token in a step, in ns."""
    return sum(part.median for part in arm.parts if part.name == GET_OUTPUT)


def device_bound(arm: Arm) -> bool:
    """Whether the device always has its next step before the last one ends."""
    return (
        arm.asynchronous
        and arm.device is not None
        and token_wait(arm) >= (1 - BOTTLENECK) * arm.step
    )


def most_saved(arm: Arm, part: Part) -> float | None:
    """In ns of the step; None for waiting, which is not work, and for what is beside the step."""
    if part.kind == WAIT or part.where == BESIDE:
        return None
    if part.where == HOST and device_bound(arm):
        return 0.0
    others = [arm.busy(place) for place in arm.places if place != part.where]
    return max(0.0, min(part.median, arm.step - max(others, default=0.0)))


def device_parts(arm: Arm) -> list[Part]:
    """The device's busy time and its own gaps, each of a step; empty without a device."""
    if arm.device is None:
        return []
    return [
        Part("kernels and copies", DEVICE, WORK, arm.device.busy),
        Part("own gaps", DEVICE, WORK, arm.device.own_gaps),
    ]


def waiting(arm: Arm) -> str:
    """A sentence: which side is the bottleneck, and what that means for the other one's work."""
    busy = {place: min(1.0, arm.busy(place) / arm.step) for place in arm.places}
    told = ", ".join(f"{place} busy {100 * share:.0f} %" for place, share in busy.items())
    told = f"{told} of the step"
    if device_bound(arm):
        waits = token_wait(arm)
        return (
            f"the device is the bottleneck: in each step the host waits {waits / 1000:.0f} us for "
            f"the sampled token ({told}); with less work it waits longer"
        )
    most = max(busy, key=lambda place: busy[place])
    if busy[most] >= BOTTLENECK or len(busy) == 1:
        return f"the {most} is the bottleneck: {told}"
    if DEVICE in busy and most != DEVICE:
        return f"the {most} comes first: {told}; the device waits to be given work"
    return f"no side is busy all the time, they wait for each other in turn: {told}"

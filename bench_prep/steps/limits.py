"""What removing a part could save at most, and which side a step waits for.

Work of a step is done in places: one thread of the host or several processes, and the device.
Each place does its own work one after the other, so that a step is never shorter than what any
place works in it. Taking away a part of length p therefore saves

    at most  min(p, step - busy of every other place)

of the step: p, because no chain of work gets shorter by more than what was taken out of it, and
nothing where another place is busy all the time. It is an upper bound, not a forecast.
"""

from __future__ import annotations

from bench_prep.steps.frames import BESIDE, DEVICE, WAIT, WORK, Arm, Part

#: A place that works at least this share of the step is what the step waits for.
BOTTLENECK = 0.95


def most_saved(arm: Arm, part: Part) -> float | None:
    """In ns of the step; None for waiting, which is not work, and for what is beside the step."""
    if part.kind == WAIT or part.where == BESIDE:
        return None
    others = [arm.busy(place) for place in arm.places if place != part.where]
    return max(0.0, min(part.median, arm.step - max(others, default=0.0)))


def idle(arm: Arm, place: str) -> float:
    """How long a place does not work in a step, in ns."""
    return max(0.0, arm.step - arm.busy(place))


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
    busy = {place: arm.busy(place) / arm.step for place in arm.places}
    told = ", ".join(f"{place} busy {100 * share:.0f} %" for place, share in busy.items())
    most = max(busy, key=lambda place: busy[place])
    if busy[most] >= BOTTLENECK:
        other = "its own work alone" if len(busy) == 1 else "the others wait for it"
        return f"the {most} is the bottleneck: {told} of the step; {other}"
    if DEVICE not in busy and len(busy) == 1:
        return f"the {most} is the bottleneck: {told} of the step, and otherwise waits"
    if DEVICE in busy and most != DEVICE:
        lacking = idle(arm, DEVICE) / 1000
        return (
            f"the {most} comes first: {told} of the step; the device is idle for {lacking:.0f} us "
            "of it, waiting to be given work"
        )
    return f"no side is busy all the time, they wait for each other in turn: {told} of the step"

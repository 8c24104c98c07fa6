"""What in the machine's state makes a result doubtful, and what to do about it.

The limits are on what happened while the blocks were timed, whatever their times are. What is
unknown is listed as such; it is no reason for doubt and none for trust.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench_prep.measure.device_state import IDLE, POWER_CAP, DeviceState
from bench_prep.measure.state import MachineState, Span, grown, others_busy

#: Share of the machine's processors that other work may keep busy.
OTHER_WORK = 0.1
#: Share of the time that a hypervisor may take away, and that the timing thread may wait.
STOLEN = WAITED = 0.01
#: Largest difference between two clock readings of a device at work, as a share of the larger.
CLOCK_CHANGE = 0.05


@dataclass(frozen=True)
class Doubt:
    """One reason for doubt, and its remedy; both are clauses without a full stop."""

    text: str
    remedy: str


#: What to do about others on the processors.
PIN = "stop other work, or pin the run to quiet processors: taskset -c NUMBERS bench-prep ..."


def doubts(spans: Sequence[Span]) -> list[Doubt]:
    """Every doubt about what was timed in these spans, each once."""
    states = [state for span in spans for state in (span.before, span.after)]
    found = [*_interpreter(states), *_processors(spans), *_container(spans), *_device(spans)]
    return list(dict.fromkeys(found))


def _interpreter(states: Iterable[MachineState]) -> Iterator[Doubt]:
    for state in states:
        for cause in state.slowed_by:
            yield Doubt(f"the timing process was slowed by {cause}", "run without it")
        if state.threads is not None and 0 < len(state.affinity) < state.threads:
            yield Doubt(
                f"torch had {state.threads} threads on {len(state.affinity)} processors",
                f"set OMP_NUM_THREADS to {len(state.affinity)} at most",
            )
        if state.governor not in (None, "performance"):
            yield Doubt(
                f"the processors' frequency governor was {state.governor}",
                "sudo cpupower frequency-set -g performance",
            )


def _processors(spans: Sequence[Span]) -> Iterator[Doubt]:
    others, processors = others_busy(spans), spans[0].before.processors if spans else None
    if others is not None and processors and others > OTHER_WORK * processors:
        yield Doubt(f"other work kept {others:.1f} of {processors} processors busy", PIN)
    busy, stolen = grown(spans, "busy_s"), grown(spans, "steal_s")
    if stolen and busy and stolen > STOLEN * (busy + stolen):
        yield Doubt(
            f"the hypervisor gave {100 * stolen / (busy + stolen):.1f} % of the processor time to "
            "others",
            "use a machine whose processors are not shared, or a quieter time",
        )
    elapsed, waited = grown(spans, "at_s"), grown(spans, "waited_s")
    if elapsed and waited and waited > WAITED * elapsed:
        yield Doubt(
            f"the timing thread waited {100 * waited / elapsed:.1f} % of the time for a processor",
            PIN,
        )
    if any(span.before.affinity != span.after.affinity for span in spans):
        yield Doubt(
            "the processors that the timing process may use were changed while it timed",
            "leave its affinity alone, or set it before: taskset -c NUMBERS bench-prep ...",
        )


def _container(spans: Sequence[Span]) -> Iterator[Doubt]:
    stopped = grown(spans, "quota_s")
    if stopped:
        yield Doubt(
            f"the container's processor quota stopped it for {1e3 * stopped:.0f} ms",
            "raise the quota (docker --cpus, or the limits of the pod)",
        )


def _device(spans: Sequence[Span]) -> Iterator[Doubt]:
    throttled = {reason for span in spans for reason in span.throttled}
    if throttled:
        yield Doubt(
            f"the device was throttled: {', '.join(sorted(throttled))}",
            "let it cool down; look at its cooling and its power supply",
        )
    states = [
        state.device
        for span in spans
        for state in (span.before, span.after)
        if state.device is not None
    ]
    at_cap = any(POWER_CAP in (state.reasons or ()) for state in states)
    if at_cap or any(POWER_CAP in span.slowed for span in spans):
        yield Doubt("the device was at its power limit", "stop other work on it; see nvidia-smi -q")
    others = max((state.other_processes or 0 for state in states), default=0)
    if others:
        yield Doubt(
            f"{others} other {'process was' if others == 1 else 'processes were'} on the device",
            "stop them, or use a free device: CUDA_VISIBLE_DEVICES=NUMBER",
        )
    clocks = [clock for state in states if (clock := _working_clock(state)) is not None]
    if clocks and max(clocks) - min(clocks) > CLOCK_CHANGE * max(clocks):
        yield Doubt(
            f"the device's clock changed between {min(clocks)} and {max(clocks)} MHz",
            "fix it: sudo nvidia-smi --lock-gpu-clocks=MHZ (undo: --reset-gpu-clocks)",
        )


def _working_clock(state: DeviceState) -> int | None:
    """An idle device lowers its clock; what that reading says of work is unknown."""
    return None if state.reasons is None or IDLE in state.reasons else state.clock_mhz


def unknown(spans: Sequence[Span]) -> list[str]:
    """What could not be read on this machine, each in one or two words."""
    states = [state for span in spans for state in (span.before, span.after)]
    return list(dict.fromkeys(name for state in states for name in _unknown(state)))


def _unknown(state: MachineState) -> Iterator[str]:
    facts: dict[str, object] = {
        "frequency governor": state.governor,
        "load": state.load,
        "work of others": state.busy_s,
        "steal time": state.steal_s,
        "waits for a processor": state.waited_s,
        "processor quota": state.quota_s,
        "torch's threads": state.threads,
    }
    if state.device is not None:
        device = state.device
        throttled = device.slowed_ns if device.reasons is None else device.reasons
        facts |= {
            "device clock": device.clock_mhz,
            "device temperature": device.temperature_c,
            "device power": device.power_w,
            "device throttling": throttled,
            "other processes on the device": device.other_processes,
        }
    yield from (name for name, value in facts.items() if value is None)

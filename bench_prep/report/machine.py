"""The machine's state in the report: a table, and what is doubtful."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench_prep.measure.doubts import PIN
from bench_prep.measure.state import MachineState
from bench_prep.results.machine import SEPARATOR
from bench_prep.results.row import Row

#: Share of a figure above which the clock's own cost is mentioned.
CLOCK_SHARE = 0.01
#: Share of preempted steps from which on they are mentioned.
_PREEMPTED_PCT = 1.0
_UNKNOWN = "unknown"


def state_rows(row: Row) -> tuple[tuple[str, str, str], ...]:
    """What, before and after, of one run; none where the file has no state that can be read."""
    try:
        data = json.loads(row.machine_state)
        before, after = (_texts(MachineState.from_json(data[name])) for name in ("before", "after"))
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple((name, before[name], after.get(name, _UNKNOWN)) for name in before)


def _texts(state: MachineState) -> dict[str, str]:
    def known(value: Any, unit: str = "") -> str:
        return _UNKNOWN if value is None else f"{value}{unit}"

    texts = {
        "load, mean of a minute": known(None if state.load is None else f"{state.load:.2f}"),
        "processors allowed": f"{_numbers(state.affinity)}, of {known(state.processors)}",
        "frequency governor": known(state.governor),
        "torch's threads": known(state.threads),
        "OMP_NUM_THREADS": state.omp_num_threads or "not set",
        "interpreter slowed by": ", ".join(state.slowed_by) or "nothing",
    }
    device = state.device
    if device is not None:
        reasons = None if device.reasons is None else ", ".join(device.reasons) or "nothing"
        texts |= {
            "device clock": known(device.clock_mhz, " MHz"),
            "device memory clock": known(device.memory_clock_mhz, " MHz"),
            "device temperature": known(device.temperature_c, " °C"),
            "device power": f"{known(device.power_w)} of {known(device.power_limit_w, ' W')}",
            "device clock held back by": known(reasons),
            "other processes on the device": known(device.other_processes),
        }
    return texts | {"reading this state took": f"{1e3 * state.read_s:.2f} ms"}


def _numbers(affinity: tuple[int, ...]) -> str:
    """Numbers count from 0: `number 0, of 2` is one of them."""
    return f"number{'s'[len(affinity) == 1 :]} {ranges(affinity)}"


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,8`, as `taskset` writes it."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


def state_notes(row: Row) -> tuple[str, ...]:
    """What could not be read; that nothing is doubtful, where that is so."""
    if not row.machine_state:
        return ()
    notes = ["Read between rounds, never while a step is timed."]
    if not row.doubts:
        notes.append("Nothing doubtful was found in what could be read.")
    if row.unknown_state:
        notes.append(f"Unknown on this machine: {row.unknown_state.replace(SEPARATOR, ', ')}.")
    return tuple(notes)


def machine_warnings(rows: Sequence[Row], which: Callable[[Iterable[bool]], str]) -> list[str]:
    """Doubts, left-out rounds and costly clocks; `which` names the rows that are meant."""
    found = []
    left_out = [row.left_out_because.split(SEPARATOR) for row in rows]
    for cells, said in (
        (left_out, "Left out and not counted, whatever their times"),
        ([row.doubts.split(SEPARATOR) for row in rows], "Doubtful"),
    ):
        for entry in dict.fromkeys(entry for cell in cells for entry in cell if entry):
            found.append(f"{said}: {entry}{which(entry in cell for cell in cells)}.")
    whys = [why for cell in left_out for why in cell]
    if any("preempted" in why for why in whys):
        found.append(
            f"What to do about preempted rounds: {PIN}; and run fewer of them at once than there "
            "are processors."
        )
    if any(" in " in why and "preempted" not in why for why in whys):
        found.append(
            "What to do about left-out rounds: raise --warmup, so that it happens before the "
            "timing; what still happens then is a cost of the arm itself."
        )
    for of_row in (_preempted, _cost):
        texts = [of_row(row) for row in rows]
        for text in dict.fromkeys(filter(None, texts)):
            found.append(f"{text}{which(other == text for other in texts)}.")
    return found


def _preempted(row: Row) -> str:
    share = row.preempted_pct
    return (
        f"In {share:.0f} % of the timed steps other programs had the processor for a while; these "
        f"are in no median. What to do: {PIN}"
        if share is not None and share >= _PREEMPTED_PCT
        else ""
    )


def _cost(row: Row) -> str:
    share = clock_share(row)
    return (
        f"The clock alone takes {row.clock_cost_ns} ns of each time, {100 * share:.1f} % of the "
        "shorter one"
        if share > CLOCK_SHARE
        else ""
    )


def clock_share(row: Row) -> float:
    """The clock's own cost as a fraction of the faster arm's time; 0 where either is unknown."""
    times = [time for time in (row.baseline_ms, row.candidate_ms) if time is not None]
    if not times or row.clock_cost_ns is None:
        return 0.0
    return row.clock_cost_ns / 1e6 / min(times)

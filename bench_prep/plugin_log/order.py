"""The plugin's lines of one file in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from bench_prep.fastpath.log_lines import RESERVED, SUMMARY
from bench_prep.plugin_log.records import Line

_YEAR = timedelta(days=366).total_seconds()
Process = tuple[str, int | None]


def process_of(line: Line) -> Process:
    """Who wrote a line; processes of two machines may have the same identifier."""
    return line.source, line.counts["pid"] if line.pid is None and line.counts else line.pid


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Oldest first, whichever way the log was exported.

    Of summaries that follow each other in a process the first and the last are kept, so that
    memory does not grow with the log.
    """
    kept: dict[int, Line] = {}
    runs: dict[Process, list[int]] = {}
    latest: dict[str, Line] = {}
    by_time = by_pair = by_counts = 0  # lines in the order of writing, less the others
    for number, line in enumerate(lines):
        process = process_of(line)
        before = latest.get(line.source)
        latest[line.source] = line
        by_time += _sign(_later(before, line)) if before else 0
        by_pair += _pair(before, line) - _pair(line, before)
        if line.text.startswith(f"{SUMMARY}:"):
            continue
        kept[number] = line
        if line.counts is None:
            runs.clear()
            continue
        run = runs.setdefault(process, [])
        if run:
            change = _change(kept[run[-1]], line)
            by_counts += _sign(change)
            if len(run) > 1 and change * _change(kept[run[0]], kept[run[1]]) >= 0:
                del kept[run.pop()]
        runs[process] = [*run[-1:], number]
    found = list(kept.values())
    if (by_time or by_pair or by_counts) < 0:
        found.reverse()
    first = next((line for line in found if line.seconds is not None), None)
    if first is None or any(line.seconds is None for line in found):
        return found
    # An export may come in pieces of either order; the clock of a machine may be set back.
    sorted_ = sorted(found, key=lambda line: _later(first, line))
    return min(found, sorted_, key=falls)


def falls(lines: Sequence[Line]) -> int:
    """How often the counters of a process fall although it did not start anew meanwhile."""
    steps: dict[Process, int] = {}
    number = 0
    for line in lines:
        if line.text.startswith(RESERVED):
            steps = {} if line.pid is None else steps
            steps.pop(process_of(line), None)
        elif line.counts is not None:
            number += line.counts["steps"] < steps.get(process_of(line), 0)
            steps[process_of(line)] = line.counts["steps"]
    return number


def _later(first: Line, second: Line) -> float:
    """Seconds from the one to the other; the logs' times have no year."""
    if first.seconds is None or second.seconds is None:
        return 0
    return (second.seconds - first.seconds + _YEAR / 2) % _YEAR - _YEAR / 2


def _pair(first: Line | None, second: Line | None) -> bool:
    """Whether they are the two lines of one summary, the one for people first."""
    if first is None or second is None or second.counts is None:
        return False
    numbers = f"{SUMMARY}: {second.counts['dispatched']} of {second.counts['decode_steps']} "
    return first.text.startswith(numbers)


def _change(first: Line, second: Line) -> int:
    assert first.counts is not None and second.counts is not None
    return int(second.counts["steps"] - first.counts["steps"])


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)

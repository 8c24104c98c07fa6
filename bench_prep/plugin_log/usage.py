"""How a service used the fast path, folded from the plugin's lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench_prep.fastpath.log_lines import (
    CHECK_FAILED,
    CLOSED,
    FIRST_DISPATCH,
    NOT_USED,
    RESERVED,
    SUMMARY,
)
from bench_prep.plugin_log.lines import Line

_NUMBERS = ("pid", "steps", "decode_steps", "dispatched", "checked")


@dataclass
class Usage:
    """All processes of a log: the last summary of each, added up.

    Attributes:
        reserved: what the last process said that reserved the fast path; "" without such a line.
        not_used: why the last process that started does not use it; None if it does.
        processes: processes that reserved the fast path.
        without_summary: those of them that wrote no counters.
        decode_steps: steps in which every request got one new token.
        dispatched: those of them that the fast path prepared.
        fallbacks: the others, by reason.
        first_dispatch: whether any process dispatched a step, counted or not.
        checked: dispatched steps that the self-check compared.
        differences: what the self-check found.
        failures: why a process gave the fast path up otherwise.
    """

    reserved: str = ""
    not_used: str | None = None
    processes: int = 0
    without_summary: int = 0
    decode_steps: int = 0
    dispatched: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    first_dispatch: bool = False
    checked: int = 0
    differences: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float | None:
        """Dispatched steps per decode step; None without any."""
        return self.dispatched / self.decode_steps if self.decode_steps else None

    def add(self, process: _Process) -> None:
        """Add a process that has ended, or at which the log ends."""
        self.processes += 1
        self.first_dispatch |= process.dispatched
        closed = process.closed
        if process.counts is None:
            self.without_summary += 1
        else:
            self.decode_steps += process.counts["decode_steps"]
            self.dispatched += process.counts["dispatched"]
            self.checked += process.counts["checked"]
            self.fallbacks.update(process.counts["decode_fallbacks"])
            closed = closed or process.counts.get("closed")
        if closed:
            found = self.differences if closed.startswith(CHECK_FAILED) else self.failures
            found[closed] += 1


@dataclass
class _Process:
    dispatched: bool = False
    closed: str | None = None
    counts: dict[str, Any] | None = None

    @property
    def began(self) -> bool:
        """Whether it is known to have taken a step."""
        return self.dispatched or self.counts is not None


def usage_in(lines: Iterable[Line]) -> Usage | None:
    """What the lines of one service say, in the order in which they were written.

    The counters of a process grow until it ends, so that its last summary counts. A process
    identifier can come back after a restart: a new process begins where the fast path is reserved
    again or the counters fall.

    Returns:
        None where there is no line that the plugin writes.
    """
    usage, any_line = Usage(), False
    running: dict[int | None, _Process] = {}
    last: int | None = None  # whose the lines are where the log's format names no process
    for line in lines:
        text = line.text
        reason = text.partition(": ")[2]
        pid = last if line.pid is None else line.pid
        if text.startswith(RESERVED):
            usage.reserved, usage.not_used = reason, None
            if pid in running and running[pid].began:
                usage.add(running.pop(pid))
            running.setdefault(pid, _Process())
        elif text.startswith(NOT_USED):
            usage.not_used = reason
        elif text.startswith(FIRST_DISPATCH):
            running.setdefault(pid, _Process()).dispatched = True
        elif text.startswith(CLOSED):
            running.setdefault(pid, _Process()).closed = reason
        elif (counts := _summary(text)) is not None:
            if line.pid is None and pid != counts["pid"]:
                last = counts["pid"]
                if pid in running and running[pid].counts is None:
                    running[last] = running.pop(pid)
                pid = last
            before = running.setdefault(pid, _Process()).counts
            if before is not None and counts["steps"] < before["steps"]:
                usage.add(running.pop(pid))
            running.setdefault(pid, _Process()).counts = counts
        else:
            continue  # the summary for people, a line that was cut, or none of the plugin's
        any_line = True
    for process in running.values():
        usage.add(process)
    return usage if any_line else None


def _summary(text: str) -> dict[str, Any] | None:
    """The counters of a summary; None for any other line, and for one that was cut."""
    try:
        record, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("event") != SUMMARY:
        return None
    numbers = all(isinstance(record.get(name), int) for name in _NUMBERS)
    reasons = record.get("decode_fallbacks")
    if not numbers or not isinstance(reasons, dict):
        return None
    if not all(isinstance(count, int) for count in reasons.values()):
        return None
    return record

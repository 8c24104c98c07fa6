"""How a service used the fast path, folded from the plugin's lines."""

from __future__ import annotations

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
from bench_prep.plugin_log.order import Process, process_of
from bench_prep.plugin_log.records import Line

#: Ray leaves out lines that differ in their numbers alone.
_REPEATED = "x across cluster]"


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
        unread: lines with the plugin's mark that were cut, or that nothing here can read.
        mixed: whether counters are missing, or of processes that the log does not tell apart.
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
    unread: int = 0
    mixed: bool = False

    @property
    def share(self) -> float | None:
        """Dispatched steps per decode step; None without any."""
        return self.dispatched / self.decode_steps if self.decode_steps else None

    def add(self, process: _Process) -> None:
        """Add a process that has ended, or at which the log ends."""
        self.processes += 1
        self.first_dispatch |= process.dispatched is not None
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
    dispatched: tuple[str, float | None] | None = None
    closed: str | None = None
    counts: dict[str, Any] | None = None

    @property
    def began(self) -> bool:
        """Whether it is known to have taken a step."""
        return self.dispatched is not None or self.counts is not None


def usage_in(lines: Iterable[Line]) -> Usage | None:
    """What the lines of one service say, in the order in which they were written.

    The counters of a process grow until it ends, so that its last summary counts. A process
    identifier can come back after a restart: a new process begins where the fast path is reserved
    again or the counters fall.

    Returns:
        None where there is no line that the plugin writes, nor one that cannot be read.
    """
    usage, any_line = Usage(), False
    running: dict[Process, _Process] = {}
    falls: Counter[Process] = Counter()
    unclear: Counter[str] = Counter()  # starts of some process, where several are unnamed
    grew: set[str] = set()  # where the start could also be of one whose counters grew meanwhile
    last: dict[str, int] = {}  # whose the lines are where the log's format names no process
    for line in lines:
        text = line.text
        reason = text.partition(": ")[2]
        process = line.source, last.get(line.source) if line.pid is None else line.pid
        if text.startswith(RESERVED):
            usage.reserved, usage.not_used = reason, None
            falls[process] = 0
            if line.pid is None and sum(source == line.source for source, _ in running) > 1:
                unclear[line.source] += 1  # its counters will show which process began
                continue
            if process in running and running[process].began:
                usage.add(running.pop(process))
            running.setdefault(process, _Process())
        elif text.startswith(NOT_USED):
            usage.not_used = reason
        elif text.startswith(FIRST_DISPATCH):
            one = running.setdefault(process, _Process())
            # A process says it once; two handlers may write it twice, at the same time.
            said = text, line.seconds and int(line.seconds)
            usage.mixed |= line.pid is not None and said != (one.dispatched or said)
            one.dispatched = said
        elif text.startswith(CLOSED):
            running.setdefault(process, _Process()).closed = reason
        elif (counts := line.counts) is not None:
            if line.pid is None and process[1] != counts["pid"]:
                last[line.source] = counts["pid"]
                known = process_of(line)
                if process in running and running[process].counts is None:
                    running[known] = running.pop(process)
                process = known
            before = running.setdefault(process, _Process()).counts
            fell = before is not None and counts["steps"] < before["steps"]
            if unclear[line.source]:
                unclear[line.source] -= fell or before is None
                grew |= {line.source} if before is not None and not fell else set()
            elif fell:
                falls[process] += 1
                usage.mixed |= falls[process] > 1
            if fell:
                usage.add(running.pop(process))
            running.setdefault(process, _Process()).counts = counts
            usage.mixed |= _REPEATED in text
        else:
            usage.unread += not text.startswith(f"{SUMMARY}:")
            continue
        any_line = True
    for each in running.values():
        usage.add(each)
    usage.mixed |= any(unclear[source] for source in grew)
    return usage if any_line or usage.unread else None

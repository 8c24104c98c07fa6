"""Whether the servers used the fast path, from their logs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from bench_prep.plugin_log.logs import read_logs
from bench_prep.plugin_log.usage import Usage, usage_in

#: Triton's line for a kernel that it tuned itself, instead of taking a choice that was kept.
_TUNED = "Triton autotuning for function"
#: The counters are in the log a second or two after the last step.
_COUNTERS_S = 10.0


def usage_of(log: Path, steps: int) -> Usage | None:
    """How the fast path was used, as soon as the log counts all steps."""
    end = time.monotonic() + _COUNTERS_S
    while True:
        usage = usage_in(read_logs([log]))
        off = usage is None or usage.not_used is not None
        if off or usage.decode_steps >= steps or time.monotonic() > end:  # type: ignore[union-attr]
            return usage
        time.sleep(0.2)


def since(before: Usage | None, after: Usage | None) -> Usage | None:
    """What was counted between two looks at the log of a service."""
    if before is None or after is None or after.decode_steps < before.decode_steps:
        return after  # the last: the log was begun anew
    return replace(
        after,
        decode_steps=after.decode_steps - before.decode_steps,
        dispatched=after.dispatched - before.dispatched,
        checked=after.checked - before.checked,
        fallbacks=after.fallbacks - before.fallbacks,
    )


def unused_reason(usage: Usage | None) -> str:
    """Why the fast path was not used; "" if it was."""
    if usage is None:
        return "the log has no line of the plugin (is bench-prep installed beside that vLLM?)"
    if usage.not_used is not None:
        return usage.not_used
    closed = [*usage.differences, *usage.failures]
    if closed:
        return f"it was given up: {closed[0]}"
    if not usage.dispatched:
        most = ", ".join(name for name, _ in usage.fallbacks.most_common(1))
        return "no decode step was dispatched: " + (
            most or "none was counted meanwhile (is it the log of this service?)"
        )
    return ""


def used_text(usage: Usage | None) -> str:
    """Whether it was used, how much, and what made the times longer than they need be."""
    unused = unused_reason(usage)
    if usage is None or unused:
        return f"{'not known' if usage is None else 'not used'}: {unused}"
    text = f"used: {usage.dispatched} of {usage.decode_steps} decode steps"
    if usage.checked:
        text += f"; {usage.checked} prepared twice by the self-check, whose time is in TPOT"
    return text


def tuned_in(log: Path) -> int:
    """How many times Triton chose a kernel by timing, in the process with this log."""
    return log.read_text("utf-8", "replace").count(_TUNED)

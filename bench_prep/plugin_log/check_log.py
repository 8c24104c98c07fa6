"""`bench-prep check-log`: does the service use the fast path, and for which share of its steps?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from bench_prep.errors import EXIT_INCONCLUSIVE, BenchPrepError, Missing, OutputsDiffer, UsageError
from bench_prep.plugin_log.logs import read_logs
from bench_prep.plugin_log.usage import Usage, usage_in
from bench_prep.stages import Stages


class NotShown(BenchPrepError):
    """The log does not show that the fast path is used, or not enough."""

    exit_code: ClassVar[int] = EXIT_INCONCLUSIVE


def check_log(
    files: Sequence[Path], *, min_share: float | None, as_json: bool, console: Console
) -> None:
    """Show how the service whose log this is uses the fast path; return if it does.

    `min_share`: in per cent of the decode steps.

    Raises:
        OutputsDiffer: a self-check found a difference.
        Missing: the service does not use it, or no line of the plugin is there.
        NotShown: reserved, but not dispatched, not counted, given up or below `min_share`.
        UsageError: a file is no log, or nothing in it can be counted.
    """
    usage: Usage | None = None
    error: BenchPrepError | None
    try:
        usage = usage_in(read_logs(files))
        error = _objection(usage, min_share)
    except UsageError as unusable:
        error = unusable
    if isinstance(error, UsageError):
        usage = None  # what was counted is not the sum
    if as_json:
        console.print_json(json.dumps(as_record(usage, error)), highlight=False)
    elif usage is not None:
        _show(usage, Stages(console))
    if error is not None:
        raise error


def _objection(usage: Usage | None, min_share: float | None) -> BenchPrepError | None:
    """Why the fast path is not used as it should be; the gravest reason first."""
    if usage is None:
        return Missing(
            "the log has no line of bench-prep",
            "install it beside that vLLM; name bench_prep in VLLM_PLUGINS where that is set; "
            "let VLLM_LOGGING_LEVEL show INFO; and give the log from the service's start on",
        )
    if usage.differences:
        return OutputsDiffer(
            f"a self-check closed the fast path: {next(iter(usage.differences))}",
            "report the line; the service went on with vLLM's own path",
        )
    if usage.mixed:
        return UsageError(
            "the log does not tell apart the processes of several machines, or leaves out lines",
            "give the log of each replica alone, or with its name before each line; "
            "set RAY_DEDUP_LOGS=0 for Ray",
        )
    if usage.unread and not usage.decode_steps:
        return UsageError(
            f"{usage.unread} lines with [bench-prep] cannot be read: they were cut, or the format "
            "is not known",
            "give the log as vLLM wrote it",
        )
    if usage.not_used is not None:
        return Missing(
            f"the fast path is not used: {usage.not_used}",
            "remove that cause and start the service again",
        )
    if usage.failures:
        return NotShown(
            f"the fast path was given up: {next(iter(usage.failures))}",
            "report the line; the service went on with vLLM's own path",
        )
    if not usage.decode_steps:
        seen = "dispatched" if usage.first_dispatch else "reserved"
        return NotShown(
            f"the fast path is {seen}, but no decode step is counted",
            "send a request, and wait two seconds for the summary",
        )
    if not usage.dispatched:
        return NotShown(
            f"no decode step was dispatched: {_most(usage)}",
            "send one request at a time, of several new tokens",
        )
    share = 100 * usage.dispatched / usage.decode_steps
    if min_share is not None and share < min_share:
        return NotShown(
            f"the fast path prepared {share:.1f} % of the decode steps, less than {min_share:g} %; "
            f"the main reason: {_most(usage)}",
            "send one request at a time, or lower --min-share",
        )
    return None


def _most(usage: Usage) -> str:
    return ", ".join(name for name, _ in usage.fallbacks.most_common(1)) or "unknown"


def _show(usage: Usage, stages: Stages) -> None:
    if usage.processes:
        stages.passed("reserved", usage.reserved or "before this log begins")
    else:
        stages.passed("reserved", "no")
    if usage.decode_steps:
        share = 100 * usage.dispatched / usage.decode_steps
        stages.passed(
            "dispatch",
            f"{usage.dispatched} of {usage.decode_steps} decode steps ({share:.1f} %)",
        )
    else:
        stages.passed("dispatch", "yes, not counted yet" if usage.first_dispatch else "none")
    if usage.fallbacks:
        reasons = ", ".join(f"{count} {name}" for name, count in usage.fallbacks.most_common())
        stages.passed("else", reasons)
    if usage.checked:
        found = "different" if usage.differences else "equal"
        stages.passed("checked", f"{usage.checked} steps, {found}")
    else:
        stages.passed("checked", "none; BENCH_PREP_SELFCHECK=N checks every Nth dispatched step")
    if usage.unread:
        stages.passed("unread", f"{usage.unread} lines with [bench-prep]")
    if usage.processes > 1:
        counted = usage.processes - usage.without_summary
        stages.passed("process", f"{usage.processes} reserved it, {counted} wrote counters")


def as_record(usage: Usage | None, error: BenchPrepError | None) -> dict[str, Any]:
    """What `--json` prints; docs/service.md describes the keys."""
    usage = usage or Usage()
    return {
        "exit_code": 0 if error is None else error.exit_code,
        "problem": None if error is None else error.message,
        "reserved": usage.processes > 0,
        "dispatched": usage.first_dispatch or usage.dispatched > 0,
        "decode_steps": usage.decode_steps,
        "dispatched_steps": usage.dispatched,
        "share_pct": 100 * usage.dispatched / usage.decode_steps if usage.decode_steps else None,
        "fallbacks": dict(usage.fallbacks.most_common()),
        "checked": usage.checked,
        "differences": list(usage.differences),
        "failures": list(usage.failures),
        "not_used": usage.not_used,
        "processes": usage.processes,
        "without_summary": usage.without_summary,
    }

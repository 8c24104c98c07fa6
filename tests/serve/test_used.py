"""What is said of a service's log: the fast path's part in what was just measured."""

from __future__ import annotations

from collections import Counter

from bench_prep.plugin_log.usage import Usage
from bench_prep.serve.used import since, used_text


def usage(decode_steps: int, dispatched: int, checked: int = 0) -> Usage:
    return Usage("a CPU", None, 1, 0, decode_steps, dispatched, Counter(), True, checked)


def test_only_what_was_counted_meanwhile() -> None:
    found = since(usage(100, 90, 9), usage(150, 140, 14))
    assert used_text(found) == (
        "used: 50 of 50 decode steps; 5 prepared twice by the self-check, whose time is in TPOT"
    )
    assert used_text(since(None, usage(7, 6))) == "used: 6 of 7 decode steps"
    assert used_text(since(usage(100, 90), usage(7, 6))) == "used: 6 of 7 decode steps"
    # The self-check was on before, in a process that has ended.
    assert used_text(since(usage(100, 90, 9), usage(101, 91, 9))) == "used: 1 of 1 decode steps"


def test_not_used() -> None:
    assert used_text(None).startswith("not known: the log has no line of the plugin")
    one = since(usage(100, 90), usage(150, 90))
    assert used_text(one).startswith("not used: no decode step was dispatched: none was counted")

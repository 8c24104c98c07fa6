"""What the probe sends, and a launch of it as it was: all events, then the return code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_prep.child.channel import Event
from bench_prep.child.launch import launched
from bench_prep.errors import BenchPrepError


@dataclass(frozen=True)
class Said(Event):
    """Whatever the test's code gives."""

    data: dict[str, Any]


def run_isolated(
    module: str,
    job: Mapping[str, Any],
    extra: dict[str, str],
    on_event: Callable[[dict[str, Any]], Any],
    log: Path,
) -> int:
    """Run one child, which is never done; its return code."""
    with launched(module, job, extra, log) as child:
        try:
            for event in child.events():
                assert isinstance(event, Said)
                on_event(event.data)
        except BenchPrepError as error:
            if "ended early" not in error.message:
                raise
        code = child.poll()
        assert code is not None
        return code

"""What the process of an engine under proof sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_prep.child.channel import Event


@dataclass(frozen=True)
class Facts(Event):
    """What is served, on what (`ProbedWorker.engine_facts`), by this version of vLLM."""

    facts: dict[str, Any]
    vllm: str


@dataclass(frozen=True)
class Outputs(Event):
    """Of one phase: each request's, and the fast path's counters since the engine's start.

    `number` is that of the pass over all phases.
    """

    number: int
    phase: str
    requests: list[dict[str, Any]]
    counts: dict[str, Any] | None


@dataclass(frozen=True)
class Fault(Event):
    """The outputs with one slot of a KV group that was made wrong, at this position."""

    group: int
    position: int | None
    requests: list[dict[str, Any]]

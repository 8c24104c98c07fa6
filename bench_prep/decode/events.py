"""What every process with runners of its own sends first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_prep.child.channel import Event


@dataclass(frozen=True)
class Imported(Event):
    """vLLM was imported, from this folder."""

    package_dir: str


@dataclass(frozen=True)
class State(Event):
    """The runners are there; the environment columns that only their process knows."""

    environment: dict[str, Any]

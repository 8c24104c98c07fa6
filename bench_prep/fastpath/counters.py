"""Which steps took which path, and why not the fast one."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counters:
    """The counters of one `FastPath`, which its summary outlives.

    Attributes:
        dispatched: steps prepared by the fast path.
        fallbacks: steps left to vLLM's own path, by the step gate's reason.
        decode_fallbacks: those of them in which every request got one new token.
        checked: dispatched steps that `SelfCheck` compared with vLLM's own path.
        closed: why no step is dispatched any more, or None.
    """

    dispatched: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    decode_fallbacks: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    closed: str | None = None

    def fall_back(self, reason: str, *, decode: bool) -> None:
        """A step was left to vLLM's own path."""
        self.fallbacks[reason] += 1
        if decode:
            self.decode_fallbacks[reason] += 1

    @property
    def steps(self) -> int:
        """Steps taken so far, on either path."""
        return self.dispatched + sum(self.fallbacks.values())

    def record(self) -> dict[str, Any]:
        """The counters, as they go into the log."""
        return {
            "pid": os.getpid(),
            "steps": self.steps,
            "decode_steps": self.dispatched + sum(self.decode_fallbacks.values()),
            "dispatched": self.dispatched,
            "fallbacks": dict(self.fallbacks),
            "decode_fallbacks": dict(self.decode_fallbacks),
            "checked": self.checked,
            "closed": self.closed,
        }

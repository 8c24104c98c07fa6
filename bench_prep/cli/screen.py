"""The console of every command: text from outside is shown, and no terminal obeys it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from bench_prep.errors import printable


class Screen(Console):
    """Control characters in whatever is printed are escaped; Rich's own colours are not text."""

    def render(self, *given: Any, **more: Any) -> Iterable[Segment]:
        for segment in super().render(*given, **more):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

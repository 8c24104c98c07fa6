"""What a command shows while it works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape


class Stages:
    """One line per stage, and a moving line while a stage runs."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def passed(self, name: str, text: str) -> None:
        self.console.print(
            f"[green]{name:<8}[/green] {escape(text)}", highlight=False, soft_wrap=True
        )

    @contextmanager
    def running(self, name: str) -> Iterator[Any]:
        """Yields a function that changes the moving line, and the stage's name if a second one
        is given; nothing moves without a terminal.
        """
        with self.console.status(name) as status:
            yield lambda text, stage=name: status.update(f"{stage}: {escape(text)}")

"""What a command shows while it works."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from bench_prep.errors import printable

_SECONDS_BETWEEN_LINES = 5.0


class Update(Protocol):
    """Shows what a stage is doing."""

    def __call__(self, text: str, stage: str = ...) -> None: ...


class Stages:
    """One line per stage, and a moving line while a stage runs."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def passed(self, name: str, text: str) -> None:
        self.console.print(
            f"[green]{name:<8}[/green] {escape(printable(text))}", highlight=False, soft_wrap=True
        )

    def launched(self, package_dir: str) -> None:
        """The timing process has imported vLLM from `package_dir`."""
        self.passed(
            "launch", f"fresh interpreter in an empty folder under /tmp; imports {package_dir}"
        )

    @contextmanager
    def running(self, name: str) -> Iterator[Update]:
        """Yields a function that shows what a stage is doing: `update(text, stage=name)`.

        On a terminal one line changes; elsewhere a line is printed for what takes long.
        """
        if self.console.is_terminal:
            with self.console.status(name) as status:
                yield lambda text, stage=name: status.update(Text(printable(f"{stage}: {text}")))
            return
        printed = time.monotonic()

        def update(text: str, stage: str = name) -> None:
            nonlocal printed
            if time.monotonic() - printed >= _SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                self.console.print(
                    f"{stage:<8} ... {escape(printable(text))}", highlight=False, soft_wrap=True
                )

        yield update

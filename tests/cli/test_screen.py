"""No terminal obeys what comes from a file, a folder or a command line."""

from __future__ import annotations

import io

from rich.table import Table

from bench_prep.cli.screen import Screen

HOSTILE = "a\x1b[2Jb\x9b31m"


def test_control_characters_are_shown_and_colours_stay() -> None:
    screen = Screen(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    screen.print(table, style="red")
    screen.print(HOSTILE, markup=False, highlight=False)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m" in text  # our own colour
    assert text.count("\\x1b[2J") == 3  # a cell may be cut, it was measured without
    assert "\x1b[2J" not in text and "\x9b" not in text

"""Sections as Rich tables: no figure is ever cut, at any width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench_prep.errors import printable
from bench_prep.report.section import Section
from bench_prep.report.sections import run_sections
from bench_prep.results.row import Row

_STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "same": "bold",
    "inconclusive": "bold yellow",
    "different": "bold red",
}


def _table(section: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(section.header):
        justify: Literal["left", "right"] = "left" if index < section.left else "right"
        # A cell that is too wide continues on the next line; Rich would cut it off by default.
        table.add_column(Text(printable(name)), justify=justify, overflow="fold")
    for row in section.rows:
        # Text and not str: square brackets in a value are no markup.
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    return table


def render(sections: Sequence[Section]) -> RenderableType:
    """The sections one below the other, readable at 80 columns and in a pipe."""
    parts: list[RenderableType] = []
    for section in sections:
        parts.extend((Text(""), Text(printable(section.title), style="bold")))
        if section.rows:
            parts.append(_table(section))
        parts.extend(Text(printable(note)) for note in section.notes)
    return Group(*parts[1:])


def result_view(rows: Sequence[Row]) -> RenderableType:
    """What `bench-prep run` shows at its end: one run, all its clocks (rows of `rows.rows`)."""
    return render(run_sections(rows))

"""Sections as Markdown, with plain GitHub tables."""

from __future__ import annotations

from collections.abc import Sequence

from bench_prep.errors import printable
from bench_prep.report.section import Section


def _escaped(text: str) -> str:
    """A text that is the same when rendered: no cell ends early, no tag or emphasis starts."""
    for character in ("\\", "|", "*", "_", "`", "[", "<"):
        text = text.replace(character, "\\" + character)
    return printable(" ".join(text.splitlines()))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown(sections: Sequence[Section]) -> str:
    """One heading, table and notes per section; ends in a newline."""
    lines = ["# bench-prep report", ""]
    for section in sections:
        lines += [f"## {_escaped(section.title)}", ""]
        if section.rows:
            lines.append(_line([_escaped(name) for name in section.header]))
            lines.append(
                _line(["---" if i < section.left else "---:" for i in range(len(section.header))])
            )
            lines += [_line([_escaped(cell) for cell in row]) for row in section.rows]
            lines.append("")
        for note in section.notes:
            lines += [_escaped(note), ""]
    return "\n".join(lines).rstrip("\n") + "\n"

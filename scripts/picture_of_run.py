"""Runs a bench-prep command in a terminal of its own and keeps what it shows as an SVG.

python scripts/picture_of_run.py docs/run.svg run --position 24576 --block-sizes 16,16
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
ROOT = Path(__file__).resolve().parent.parent
#: What a reader with one minute does not need: from the first of these lines to the second.
OMITTED = re.compile(r"^\S*Saved over a whole request.*?(?=^\S*verdict )", re.DOTALL | re.MULTILINE)


def shown_by(arguments: list[str]) -> str:
    """What the command leaves on a terminal of WIDTH columns, with its colours.

    Raises:
        SystemExit: the command failed.
    """
    command = [str(Path(sys.executable).parent / "bench-prep"), *arguments]
    ours, its = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
        child = subprocess.Popen(command, stdout=its, stderr=its, cwd=folder, env=environment)
        os.close(its)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # the terminal's other side is closed
            pass
        if child.wait():
            sys.exit(f"exit code {child.returncode}:\n{written.decode()[-2000:]}")
    text = re.sub(r"\x1b\[\?25[lh]", "", written.decode().replace("\r\n", "\n"))
    # A line that was erased is gone, and one that was redrawn is what it was last.
    text = re.sub(r"[^\n]*\n?\r?\x1b\[1A\x1b\[2K", "", text)
    lines = [re.split(r"\x1b\[2K|\r", line)[-1] for line in text.split("\n")]
    return "\n".join(lines).replace(str(ROOT), "~/bench-prep")


def main(target: str, *arguments: str) -> None:
    shown = shown_by(list(arguments))
    if omitted := OMITTED.search(shown):
        lines = omitted[0].count("\n")
        note = f"\x1b[2m[{lines} lines: savings, the machine, settings]\x1b[0m\n"
        shown = OMITTED.sub(lambda match: note, shown)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ bench-prep {shlex.join(arguments)}", style="bold"))
    console.print(Text.from_ansi(shown.strip()))
    svg = console.export_svg(title="bench-prep")
    # The reader's own monospaced font: a picture fetches nothing.
    Path(target).write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The command that a result names as the one that made it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import typer


def command_line(context: typer.Context | None = None, **paths: Path | None) -> str:
    """The command line as given, and those options of `paths` that variables set, to repeat it.

    The home folder is `~`, for result files that are passed on.
    """
    words = sys.argv[1:]
    for name, path in paths.items():
        source = context and context.get_parameter_source(name)
        if path is not None and source and source.name == "ENVIRONMENT":
            words += [f"--{name}", str(path)]
    return " ".join(["bench-prep", *map(_quoted, words)])


def _quoted(word: str) -> str:
    home = os.environ.get("HOME", "").rstrip("/") + "/"  # `Path.home` raises where there is none
    if home == "/" or not word.startswith(home) or word == home:
        return shlex.quote(word)
    return "~/" + shlex.quote(word.removeprefix(home))

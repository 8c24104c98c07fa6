"""The command that a result names as the one that made it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import typer


def command_line(context: typer.Context | None = None, **paths: Path | None) -> str:
    """The command line as given, and those options of `paths` that variables set, to repeat it.

    In the latter the home folder is `~`, for result files that are passed on.
    """
    command = shlex.join(["bench-prep", *sys.argv[1:]])
    for name, path in paths.items():
        source = context and context.get_parameter_source(name)
        if path is not None and source and source.name == "ENVIRONMENT":
            command += f" --{name} {_from_home(path)}"
    return command


def _from_home(path: Path) -> str:
    home = Path.home()
    if path == home or not path.is_relative_to(home):
        return shlex.quote(str(path))
    return "~/" + shlex.quote(str(path.relative_to(home)))

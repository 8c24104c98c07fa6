"""For the set-up scripts: fetch the official worktree of a device, and install its wheel.

python -m bench_prep.provenance.prepare fetch VERSION --settings FILE --requirements FILE
python -m bench_prep.provenance.prepare install VERSION
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from bench_prep.errors import EXIT_INTERRUPTED, BenchPrepError
from bench_prep.provenance.build import build_wheel
from bench_prep.provenance.install import install_wheel
from bench_prep.provenance.official import (
    official_device,
    official_precompiled,
    official_worktree,
)
from bench_prep.provenance.requirements import runtime_requirements


def fetch(version: str, settings: Path, requirements: Path) -> None:
    """Fetch worktree and compiled parts; write where they are (shell) and what they need (pip).

    Raises:
        BenchPrepError: as `official_worktree` and `official_precompiled`.
    """
    worktree = official_worktree(version, _say)
    precompiled = official_precompiled(version, _say)
    lines = runtime_requirements(worktree.root, official_device(version))
    requirements.write_text("\n".join(lines) + "\n")
    settings.write_text(
        f"official_worktree={shlex.quote(str(worktree.root))}\n"
        f"official_precompiled={shlex.quote(str(precompiled))}\n"
    )


def install(version: str) -> None:
    """Build the official worktree, as it is in the cache now, and install the wheel.

    Raises:
        BenchPrepError: as `build_wheel` and `install_wheel`.
    """
    worktree = official_worktree(version, _say)
    precompiled = official_precompiled(version, _say)
    # With a device vLLM chooses its target itself, as in `bench-prep run`: one wheel serves both.
    device = "cpu" if official_device(version) == "cpu" else None
    built = build_wheel(worktree, precompiled, device, _say)
    if not install_wheel(built, _say):
        _say("that wheel is installed already")


def _say(line: str) -> None:
    print(f"[set-up] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """The exit code of the command line described above."""
    parser = argparse.ArgumentParser(prog="prepare", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="fetch the worktree and its compiled parts")
    installing = commands.add_parser("install", help="build and install the worktree's wheel")
    for command in (fetching, installing):
        command.add_argument("version", help="a pinned version of vLLM, such as 0.32.0")
    fetching.add_argument("--settings", type=Path, required=True)
    fetching.add_argument("--requirements", type=Path, required=True)
    given = parser.parse_args()
    try:
        if given.command == "fetch":
            fetch(given.version, given.settings, given.requirements)
        else:
            install(given.version)
    except BenchPrepError as error:
        print(f"error: {error.message}\n{error.remedy}".rstrip(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command that is recorded with a result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench_prep.cli import app as cli
from bench_prep.run import command as run


@pytest.mark.parametrize(
    ("arguments", "variables", "recorded"),
    [
        ("run --iters 5", {}, "bench-prep run --iters 5"),
        (
            "run --iters 5",
            {"BENCH_PREP_WORKTREE": "{home}/my vllm", "BENCH_PREP_PRECOMPILED": "../a.whl"},
            "bench-prep run --iters 5 --worktree ~/'my vllm' --precompiled ../a.whl",
        ),
        (
            "run --worktree given",
            {"BENCH_PREP_WORKTREE": "not-used", "BENCH_PREP_PRECOMPILED": "/opt/a.whl"},
            "bench-prep run --worktree given --precompiled /opt/a.whl",
        ),
        (
            "run --worktree {home}/mine --output a;b.csv",
            {},
            "bench-prep run --worktree ~/mine --output 'a;b.csv'",
        ),
    ],
)
def test_the_recorded_command_can_be_repeated(
    arguments: str,
    variables: dict[str, str],
    recorded: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What variables set is in it, as options, and the home folder is `~`."""
    commands = []
    monkeypatch.setattr(run, "run", lambda *given: commands.append(given[-1]))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("BENCH_PREP_WORKTREE", "BENCH_PREP_PRECOMPILED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    monkeypatch.setattr(sys, "argv", ["bench-prep", *arguments.format(home=tmp_path).split()])
    cli.app(standalone_mode=False)
    assert commands == [recorded]

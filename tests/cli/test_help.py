"""Help, shell completion, and a start that does not wait for what it does not need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench_prep

from .conftest import Bench

RUN_OPTIONS = {
    "--worktree": "",
    "--precompiled": "",
    "--no-build": "",
    "--position": "Tokens",
    "--max-model-len": "tokens",
    "--max-num-reqs": "requests",
    "--max-num-tokens": "tokens",
    "--block-sizes": "tokens",
    "--mrope": "",
    "--no-mrope": "",
    "--prompt-embeds": "",
    "--no-prompt-embeds": "",
    "--warmup": "steps",
    "--iters": "steps",
    "--rounds": "number of",
    "--margin": "per cent",
    "--budget": "seconds",
    "--device": "cuda",
    "--preset": "",
    "--candidate": "module:attribute",
    "--seed": "Seed of the requests",
    "--tpot-ms": "in ms",
    "--output": "CSV",
}
SOURCES = Path(bench_prep.__file__).parent
HEAVY = ("torch", "vllm", "pandas", "scipy", "numpy")


def test_help_of_run_names_options_and_units(bench: Bench) -> None:
    shown = bench("run", "--help").out
    after = dict.fromkeys(RUN_OPTIONS, "")
    current: list[str] = []
    for line in shown.splitlines():
        named = [name for name in RUN_OPTIONS if name in line.split("  ")[0] + line[:45]]
        current = named or current
        for name in current:
            after[name] += " " + line.strip("│ ")
    for name, unit in RUN_OPTIONS.items():
        assert name in shown
        assert unit in after[name], after[name]
        assert len(after[name]) > len(name) + 15, f"{name} has no help"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["run", "verify-install", "build", "report", "--debug", "--version"]),
        (["verify-install"], ["--worktree", "--result", "--run", "--json", "Exit code 5"]),
        (["cache"], ["--clear", "--yes", "--edited"]),
        (["build"], ["--worktree", "--precompiled", "--device", "--install"]),
        (["report"], ["--markdown", "--tpot-ms", "in ms", "files"]),
    ],
)
def test_help_of_the_others(bench: Bench, command: list[str], words: list[str]) -> None:
    done = bench(*command, "--help")
    assert done.code == 0
    assert done.err == ""
    for word in words:
        assert word in done.out


def test_without_arguments_the_help_is_shown(bench: Bench) -> None:
    done = bench()
    assert done.code == 2
    assert "verify-install" in done.out + done.err
    assert "error:" not in done.err


def test_version(bench: Bench) -> None:
    assert bench("--version").out.startswith("bench-prep 0.")


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["--version"]])
def test_help_starts_fast(command: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bench_prep", *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert imported.isdisjoint(HEAVY)


@pytest.mark.vllm
def test_verify_install_of_what_is_here(bench: Bench) -> None:
    done = bench("verify-install")
    assert done.code == 0, done.err
    assert done.out.startswith("sources  identical to RECORD")


def complete(program: Path, environment: dict[str, str], **variables: str) -> str:
    done = subprocess.run(
        [program],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.stdout


@pytest.fixture
def program() -> Path:
    path = Path(sys.executable).with_name("bench-prep")
    if not path.exists():
        pytest.skip("bench-prep is not installed beside this Python")
    return path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str, program: Path, environment: dict[str, str]) -> None:
    script = complete(program, environment, _BENCH_PREP_COMPLETE=f"source_{shell}")
    assert "_BENCH_PREP_COMPLETE" in script
    assert "bench-prep" in script


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("bench-prep ver", ["verify-install"]),
        ("bench-prep run --max", ["--max-model-len", "--max-num-reqs", "--max-num-tokens"]),
        ("bench-prep run --device c", ["cpu", "cuda"]),
    ],
)
def test_completion(
    typed: str, words: list[str], program: Path, environment: dict[str, str]
) -> None:
    offered = complete(
        program,
        environment,
        _BENCH_PREP_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(len(typed.split()) - 1),
    )
    assert offered.split() == words


def test_a_closed_pipe_is_no_fault(environment: dict[str, str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "bench_prep", "run", "--help"],
        cwd=tmp_path,
        env=environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert "fault" not in done.stderr


def test_what_is_written_by_default_is_ignored_by_git() -> None:
    """The CSVs, and what is put beside them under their names."""
    text = "".join(path.read_text() for path in (SOURCES / "cli").glob("*.py"))
    written = set(re.findall(r'Path\("(bench-prep-[^"]+)\.csv"\)', text))
    assert len(written) == 5
    ignored = (SOURCES.parent / ".gitignore").read_text().splitlines()
    assert {f"{name}*" for name in written} <= set(ignored)

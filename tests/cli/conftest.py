"""The real command line, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.environments import make_bare_environment

#: Few steps, so that a run is hardly more than the import of vLLM.
SHORT = ("--rounds", "1", "--iters", "20", "--warmup", "2")


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def refused(self, code: int, *texts: str) -> None:
        """The command ended with `code`, one line with these texts, and one with a remedy."""
        assert self.code == code, (self.code, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) <= 2, self.err
        assert lines[0].startswith("error: ")
        assert all(text in lines[0] for text in texts), lines[0]
        assert lines[1:] and lines[1].startswith("try: ")


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's environment: wide terminal, own cache, no settings of this project."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCH_PREP")}
    return kept | {
        "BENCH_PREP_CACHE": str(tmp_path_factory.mktemp("cache")),
        "COLUMNS": "120",
        "NO_COLOR": "1",
        # Two threads on a busy machine wait for each other for milliseconds.
        "OMP_NUM_THREADS": "1",
    }


Bench = Callable[..., Done]


@pytest.fixture
def bench(environment: dict[str, str], tmp_path: Path) -> Bench:
    """`python -m bench_prep` with the arguments given, in a folder of its own by default."""

    def call(
        *arguments: str | Path, python: Path | str = sys.executable, cwd: Path = tmp_path
    ) -> Done:
        done = subprocess.run(
            [python, "-m", "bench_prep", *map(str, arguments)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return call


def is_alive(pid: str) -> bool:
    """Whether a process exists that is not merely waiting to be forgotten by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def interrupted(
    arguments: list[str], cwd: Path, environment: dict[str, str], begun: Path
) -> tuple[Done, list[str]]:
    """A command that gets a Ctrl-C when the file `begun` appears, and the words of that file.

    The first word is the identifier of a process that the command started; it is checked that
    this process is gone.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bench_prep", *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 600
        while not begun.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    words = begun.read_text().split()
    assert int(words[0]) != process.pid
    deadline = time.monotonic() + 60
    while is_alive(words[0]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return Done(process.returncode, out, err), words


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with all that is installed in this one, but no vLLM."""
    yield make_bare_environment(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def same_files(tmp_path: Path) -> Iterator[None]:
    """What the command finds in its folder is what it leaves there."""

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    yield
    assert files() == before

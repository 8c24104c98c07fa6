"""The cache is shown as it is, and cleared without losing anybody's work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bench_prep.errors import Missing, UsageError
from bench_prep.provenance import cache, cachedir
from bench_prep.provenance.cachedir import MADE, new_log
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.locks import locked

KEY = "0123456789abcdef" * 2
WORKTREE = Path("official", "vllm-0.32.0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with something of everything, and an official worktree as it was unpacked."""
    root = tmp_path / "cache"
    monkeypatch.setenv("BENCH_PREP_CACHE", str(root))
    for name, size in {
        "downloads/vllm.tar.gz": 3_000_000,
        f"wheels/{KEY}/vllm.whl": 2_000_000,
        "logs/build-1.log": 100_000,
        f"envs/{KEY}/bin/python": 400_000,
        f"building/{KEY}/made/half.whl": 500_000,
        "build.lock": 0,
        f"{WORKTREE}/vllm/__init__.py": 10,
        f"{WORKTREE}/csrc/a.cu": 10,
        "official/0.32.0.json": 2,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)
    files = {
        path.relative_to(root / WORKTREE).as_posix(): file_sha256(path)
        for path in (root / WORKTREE).rglob("*")
        if path.is_file()
    }
    (root / "official" / "0.32.0.unpacked.json").write_text(json.dumps(files))
    return root


@pytest.fixture
def console() -> Console:
    return Console(width=200, record=True, quiet=True)


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_place_and_sizes(folder: Path, console: Console) -> None:
    console.quiet = False
    cache.show(console)
    lines = console.export_text().splitlines()
    assert lines[0] == f"cache    {folder}"
    rows = {line.split()[1]: line.split()[3] for line in lines if line.startswith("│")}
    assert rows == {
        "downloads": "3.0",
        "official": "0.0",
        "wheels": "2.0",
        "logs": "0.1",
        "envs": "0.4",
        "models": "0.0",
        "other": "0.5",
        "all": "6.0",
    }


def test_each_environment_is_listed_the_last_used_first(folder: Path, console: Console) -> None:
    older = folder / "envs" / ("f" * 32)
    (older / "vllm").mkdir(parents=True)
    for name in ("not-ours", "making-x"):
        (folder / "envs" / name).mkdir()
    os.utime(older, (0, 0))
    console.quiet = False
    cache.show(console)
    listed = [line for line in console.export_text().splitlines() if line.startswith("env ")]
    assert [line.split(":")[0].split()[-1] for line in listed] == [KEY, "f" * 32]
    assert "0.4 MB, last used " in listed[0]


def test_clear_removes_all_but_locks(folder: Path, console: Console) -> None:
    cache.clear(console, yes=True, edited=())
    assert files(folder) == {"build.lock", "install.lock", "official.lock", "use.lock"}
    cache.clear(console, yes=True, edited=())


def test_what_is_not_ours_stays_and_is_named(folder: Path, console: Console) -> None:
    mine = {"thesis.tex", "wheels/spare/wheel.whl", "logs/door.log", "envs/ml/bin/python"}
    for name in mine:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    console.quiet = False
    cache.clear(console, yes=True, edited=())
    assert {name for name in files(folder) if not name.endswith(".lock")} == mine
    text = console.export_text()
    assert "kept     envs/ml, logs/door.log, thesis.tex and 1 more: not made by bench-prep" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [("vllm/__init__.py", "edited"), ("notes.txt", "mine"), ("csrc/a.cu", None)],
)
def test_an_edited_worktree_stays_until_it_is_named(
    folder: Path, console: Console, name: str, content: str | None
) -> None:
    file = folder / WORKTREE / name
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    console.quiet = False
    cache.clear(console, yes=True, edited=())
    text = console.export_text()
    assert f"kept     {folder / WORKTREE}: you have edited {name}" in text
    assert "--edited vllm-0.32.0" in text
    left = {name for name in files(folder) if not name.endswith(".lock")}
    assert "official/0.32.0.json" in left and f"{WORKTREE}/vllm/__init__.py" in left
    assert all(name.startswith("official/") for name in left)
    with pytest.raises(UsageError, match="no official worktree vllm-1"):
        cache.clear(console, yes=True, edited=["vllm-1"])
    cache.clear(console, yes=True, edited=["vllm-0.32.0"])
    assert not (folder / "official").exists()


def test_what_builds_leave_in_a_worktree_is_no_edit(folder: Path, console: Console) -> None:
    for name in ("vllm/__pycache__/a.pyc", "build/lib/a.py", "vllm.egg-info/x", "vllm/_C.abi3.so"):
        (folder / WORKTREE / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / WORKTREE / name).touch()
    cache.clear(console, yes=True, edited=())
    assert not (folder / WORKTREE).exists()


def test_a_worktree_of_which_nothing_is_known_stays(folder: Path, console: Console) -> None:
    (folder / "official" / "0.32.0.unpacked.json").unlink()
    cache.clear(console, yes=True, edited=())
    assert (folder / WORKTREE / "csrc" / "a.cu").exists()


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_it_asks(folder: Path, answer: str) -> None:
    before = files(folder)
    done = subprocess.run(
        [sys.executable, "-m", "bench_prep", "cache", "--clear"],
        input=answer,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"Remove 6.0 MB in {folder}?" in " ".join(done.stdout.split())
    assert done.stderr.startswith("error: nothing was removed\ntry: ")
    assert files(folder) >= before


def test_it_takes_yes_for_an_answer(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench_prep", "cache", "--clear"], input="y\n", text=True
    )
    assert done.returncode == 0
    assert not (folder / "wheels").exists()


@pytest.mark.parametrize(
    "at_work",
    [
        "from bench_prep.provenance.locks import locked as at_work; name = ['build']",
        "from bench_prep.provenance.environments import cache_in_use as at_work; name = []",
    ],
    ids=["build", "run"],
)
def test_it_refuses_while_another_process_is_at_work(folder: Path, at_work: str) -> None:
    before = files(folder)
    code = (
        f"import sys; {at_work}; sys.argv = ['bench-prep', 'run', '--against', 'main']\n"
        "with at_work(*name): print('begun', flush=True); sys.stdin.read()\n"
    )
    clear = [sys.executable, "-m", "bench_prep", "cache", "--clear", "--yes"]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "begun\n"
        done = subprocess.run(clear, capture_output=True, text=True)
    assert done.returncode == 2
    message, remedy = done.stderr.splitlines()
    assert message.startswith(
        f"error: the cache is in use by process {other.pid} (bench-prep run --against main), at it"
    )
    assert remedy == "try: wait until it has ended"
    assert files(folder) >= before
    assert subprocess.run(clear, capture_output=True).returncode == 0
    assert not (folder / "envs").exists()


def test_what_a_build_removes_meanwhile(
    folder: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in os.walk(path):
            if Path(path).name == "wheels" and found[2]:
                shutil.rmtree(path)
            yield found

    monkeypatch.setattr(cache, "os", SimpleNamespace(walk=walk))
    console.quiet = False
    cache.show(console)
    assert not (folder / "wheels").exists()
    assert "│ wheels    │ 0.0 │     0 │" in console.export_text()


def test_old_logs_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachedir, "KEPT_LOGS", 3)
    for number in range(5):
        new_log(f"run-{number}.log").write_text("")
    (folder / "logs" / "mine.log").touch()
    new_log("run-5.log").write_text("")
    assert files(folder / "logs") == {"mine.log", "run-3.log", "run-4.log", "run-5.log"}


def test_every_log_is_known_as_ours() -> None:
    """Each call of `new_log`, and of `begin`, which makes a log in its command's name."""
    names = []
    for path in Path(cache.__file__).parents[1].rglob("*.py"):
        for call in re.findall(r"(?<![.\w])(?<!def )(?:new_log|begin)\((\S+)", path.read_text()):
            found = re.match(r"f?\"([a-z]+)", call)
            assert found or call.startswith('f"{command}'), f"{path.name}: {call}"
            names += [found[1]] if found else []
    assert {"engine", "steps", "sweep", "serve", "run", "prove", "build"} == {*names}
    for name in names:
        assert re.fullmatch(MADE["logs"], f"{name}-0123456789ab.log"), name


def test_a_cache_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder / "logs")
    (folder / "logs").touch()
    with pytest.raises(Missing, match="making a log failed"):
        new_log("run-1.log")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Missing, match="cannot be written"), locked("build"):
        pass

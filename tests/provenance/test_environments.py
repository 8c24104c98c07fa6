"""An environment is what its wheel makes, or is made anew; the newest stay, and those in use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench_prep.errors import NotTheWorktree, UsageError
from bench_prep.provenance import environments, locks
from bench_prep.provenance.build import BuiltWheel
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.environments import Environment, cache_in_use, environment_of
from bench_prep.provenance.verify import require_ok
from bench_prep.provenance.worktree import Worktree, open_worktree

pytest.importorskip("setuptools")
UTILS = Path("vllm", "v1", "utils.py")


@pytest.fixture
def wheel(built: BuiltWheel) -> BuiltWheel:
    """The wheel of `small_vllm` in this test's own cache, as if it had been built there."""
    place = cache_dir() / "wheels" / "key"
    shutil.copytree(built.path.parent, place)
    return replace(built, path=place / built.path.name, log=place / built.log.name)


@pytest.fixture
def worktree(small_vllm: Path) -> Worktree:
    return open_worktree(small_vllm)


@contextmanager
def another(held: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the cache, until its standard input is closed."""
    code = (
        "import sys\n"
        "from bench_prep.provenance.environments import cache_in_use\n"
        "from bench_prep.provenance.locks import USE, locked_at_once\n"
        f"with {held}: print('held', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == "held\n"
        yield process
    process.wait()


def site(environment: Environment) -> Path:
    return environment.verification.package_dir.parent


def test_made_once(wheel: BuiltWheel, worktree: Worktree) -> None:
    first = environment_of(wheel, worktree)
    require_ok(first.verification)
    inode = site(first).stat().st_ino
    again = environment_of(wheel, worktree)
    assert (again.damage, site(again).stat().st_ino) == ("", inode)
    assert [path.name for path in (cache_dir() / "envs").iterdir()] == [wheel.sha256[:32]]


def edit(folder: Path) -> None:
    (folder / UTILS).write_text("ONE = 666\n")


def remove(folder: Path) -> None:
    (folder / UTILS).unlink()


def remove_metadata(folder: Path) -> None:
    (folder / "vllm-0.32.0.dist-info" / "METADATA").unlink()


def remove_all(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def add(folder: Path) -> None:
    (folder / "vllm" / "v1" / "new.py").touch()


def add_beside(folder: Path) -> None:
    (folder / "torch.py").write_text("raise ImportError\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (edit, "vllm/v1/utils.py (RECORD differs)"),
        (remove, "vllm/v1/utils.py (missing)"),
        (remove_metadata, "no vLLM"),
        (remove_all, "no vLLM"),
        (add, "vllm/v1/new.py (extra)"),
        (add_beside, "beside it lies torch.py"),
    ],
)
def test_a_damaged_one_is_made_anew(
    wheel: BuiltWheel, worktree: Worktree, damage: Callable[[Path], None], said: str
) -> None:
    folder = site(environment_of(wheel, worktree))
    before = {path.relative_to(folder) for path in folder.rglob("*")}
    damage(folder)
    again = environment_of(wheel, worktree)
    require_ok(again.verification)
    assert (again.damage, site(again)) == (said, folder)
    assert (folder / UTILS).read_text() == "ONE = 1\n"
    assert {path.relative_to(folder) for path in folder.rglob("*")} == before
    assert environment_of(wheel, worktree).damage == ""
    assert len(list(folder.parent.iterdir())) == 1


def test_one_that_is_wrong_again_is_not_made_a_third_time(
    wheel: BuiltWheel, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = environments.install_wheel

    def install_wrong(*arguments: object, site: Path) -> bool:
        done = install(*arguments, site=site)  # type: ignore[arg-type]
        edit(site)
        return done

    monkeypatch.setattr(environments, "install_wheel", install_wrong)
    edit(site(environment_of(wheel, worktree)))
    found = environment_of(wheel, worktree)
    assert found.damage
    with pytest.raises(NotTheWorktree, match=r"utils\.py"):
        require_ok(found.verification)


def test_a_worktree_that_was_edited_is_no_damage(wheel: BuiltWheel, worktree: Worktree) -> None:
    inode = site(environment_of(wheel, worktree)).stat().st_ino
    (worktree.root / UTILS).write_text("TWO = 2\n")
    found = environment_of(wheel, worktree)
    assert (found.damage, site(found).stat().st_ino) == ("", inode)
    assert not found.verification.ok


A, B, C = ("a" * 32, "b" * 32, "c" * 32)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three environments, `A` the one used last, one not ours, what a killed process left."""
    monkeypatch.setattr(environments, "_KEPT", 2)
    folder = cache_dir() / "envs"
    for age, name in enumerate((A, B, C, "mine")):
        (folder / name / "vllm").mkdir(parents=True)
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    (folder / "making-x" / "new").mkdir(parents=True)
    return folder


def test_the_newest_are_kept(old: Path) -> None:
    with cache_in_use():
        assert {path.name for path in old.iterdir()} == {A, B, "mine"}


def test_nothing_goes_while_another_process_uses_it(old: Path) -> None:
    with another("cache_in_use()"):  # which has removed what lay about, but keeps more than two
        (old / "making-y").mkdir()
        with cache_in_use():
            assert {path.name for path in old.iterdir()} == {A, B, C, "mine", "making-y"}
    with cache_in_use():
        assert {path.name for path in old.iterdir()} == {A, B, "mine"}


def test_use_keeps_an_environment(wheel: BuiltWheel, worktree: Worktree, old: Path) -> None:
    used = site(environment_of(wheel, worktree))
    os.utime(used, (1e8, 1e8))
    environment_of(wheel, worktree)
    with cache_in_use():
        assert {path.name for path in old.iterdir()} == {A, used.name, "mine"}


def test_a_run_waits_for_who_has_the_cache_alone_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with another("locked_at_once(USE)") as clearing:
        assert clearing.stdin is not None
        threading.Timer(0.3, clearing.stdin.close).start()
        with cache_in_use():
            assert clearing.stdin.closed
    monkeypatch.setattr(locks, "_PATIENCE_S", 0.2)
    with (
        another("locked_at_once(USE)") as clearing,
        pytest.raises(UsageError, match=f"in use by process {clearing.pid} "),
        cache_in_use(),
    ):
        pass

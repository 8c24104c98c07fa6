"""What a row says of a checkout comes from contents; git's word is quoted, never believed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench_prep.errors import Missing, NotTheWorktree
from bench_prep.provenance.difference import difference
from bench_prep.provenance.timed_vllm import _of_worktree, require_compiled
from bench_prep.provenance.worktree import open_worktree

from .conftest import write_parts
from .test_worktree import checkout, git

__all__ = ["checkout"]
UTILS = "vllm/v1/utils.py"
KERNEL = "csrc/kernel.cu"


@pytest.fixture
def tree(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_VERSION_OVERRIDE", "0.32.0")
    git(checkout, "tag", "v1")
    return checkout


def changed(root: Path) -> list[str] | None:
    found = difference(open_worktree(root))
    return None if found is None else [*found.files]


def test_linked_worktrees_and_submodules_have_one_hash(tree: Path, tmp_path: Path) -> None:
    """`.git` is a file with a path in them (case 03)."""
    hashes = {open_worktree(tree).tree_hash()}
    for name in ("one", "two"):
        git(tree, "worktree", "add", "-q", "--detach", str(tmp_path / name))
        hashes.add(open_worktree(tmp_path / name).tree_hash())
        assert changed(tmp_path / name) == []
    outer = tmp_path / "outer"
    git(tmp_path, "init", "-q", str(outer))
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tree), "inner")
    hashes.add(open_worktree(outer / "inner").tree_hash())
    assert len(hashes) == 1


@pytest.mark.parametrize(
    "names",
    [
        ("GIT_DIR",),
        ("GIT_DIR", "GIT_WORK_TREE"),
        ("GIT_DIR", "GIT_COMMON_DIR", "GIT_INDEX_FILE"),
        ("GIT_OBJECT_DIRECTORY",),
        ("GIT_NAMESPACE", "GIT_CEILING_DIRECTORIES", "GIT_PREFIX"),
        ("GIT_CONFIG_GLOBAL", "GIT_CONFIG", "GIT_EXEC_PATH"),
    ],
)
def test_the_environment_of_a_hook_of_another_repository(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Cases 13 and 25."""
    before = _of_worktree(open_worktree(tree))
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(tree), str(other))
    (other / KERNEL).write_text("// another\n")
    git(other, "commit", "-qam", "other")
    places = {"GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / ".git" / "index"}
    for name in names:
        monkeypatch.setenv(name, str(places.get(name, other / ".git")))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.worktree")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(other))
    assert _of_worktree(open_worktree(tree)) == before
    assert before["worktree_dirty"] is False


@pytest.mark.parametrize("flag", ["--skip-worktree", "--assume-unchanged"])
def test_an_edit_that_git_was_told_not_to_see(tree: Path, tmp_path: Path, flag: str) -> None:
    """Case 26."""
    git(tree, "update-index", flag, KERNEL)
    (tree / KERNEL).write_text("// two\n")
    assert changed(tree) == [KERNEL]
    with pytest.raises(NotTheWorktree, match=r"csrc/kernel\.cu changed"):
        require_compiled(open_worktree(tree), write_parts(tmp_path))
    (tree / KERNEL).unlink()
    assert changed(tree) == [KERNEL]


@pytest.mark.parametrize("where", [".git/info/exclude", ".gitignore", "excludes"])
def test_an_ignored_source(tree: Path, where: str) -> None:
    with (tree / where).open("a") as file:
        file.write("mine.py\nsetup.cfg\ncsrc/more/\n*.log\n")
    git(tree, "config", "core.excludesFile", str(tree / "excludes"))
    before = changed(tree)
    for name in ("vllm/mine.py", "setup.cfg", "csrc/more/x.cu", "notes.log", "vllm/_version.py"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).touch()
    assert before is not None
    assert changed(tree) == sorted({*before, "csrc/more/x.cu", "setup.cfg", "vllm/mine.py"})


def test_no_program_of_a_repository_runs(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat > /dev/null\n")
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman"):
        shutil.copy(program, hooks / name)
    (tree / ".gitattributes").write_text("* filter=mine diff=mine text\n")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "attributes")
    git(tree, "tag", "v2")
    (tree / UTILS).write_text("ONE = 1\n\n")
    diffs = "diff.external", "diff.mine.textconv", "diff.mine.command"
    filters = "filter.mine.clean", "filter.mine.process"
    for name in ("core.fsmonitor", "core.pager", "core.sshCommand", *diffs, *filters):
        git(tree, "config", name, str(program))
    git(tree, "config", "core.hooksPath", str(hooks))
    (tmp_path / "ran").unlink(missing_ok=True)
    assert changed(tree) == [UTILS]
    monkeypatch.delenv("VLLM_VERSION_OVERRIDE")
    (tree / "PKG-INFO").unlink(missing_ok=True)
    assert open_worktree(tree).version.startswith("3.dev0+g")
    assert not (tmp_path / "ran").exists()


def test_a_filter_or_line_endings_hide_nothing(tree: Path) -> None:
    (tree / ".gitattributes").write_text("*.py filter=mine\n")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "attributes")
    git(tree, "config", "filter.mine.clean", "printf 'ONE = 1\\n'")
    git(tree, "config", "core.autocrlf", "true")
    git(tree, "config", "core.fileMode", "false")
    (tree / UTILS).write_text("TWO = 2\n")
    (tree / KERNEL).write_bytes((tree / KERNEL).read_bytes().replace(b"\n", b"\r\n"))
    assert changed(tree) == [KERNEL, UTILS]


def test_replaced_objects_hide_nothing(tree: Path) -> None:
    (tree / UTILS).write_text("TWO = 2\n")
    git(tree, "commit", "-qam", "two")
    git(tree, "replace", "HEAD~", "HEAD")
    git(tree, "reset", "-q", "HEAD~")
    assert changed(tree) == [UTILS]


def test_a_sparse_checkout_lacks_only_what_enters_no_build(tree: Path) -> None:
    git(tree, "sparse-checkout", "set", "--no-cone", "/*", "!/tests/")
    assert not (tree / "tests").exists()
    assert changed(tree) == []
    git(tree, "sparse-checkout", "set", "--no-cone", "/*", "!/csrc/")
    assert changed(tree) == [KERNEL]


def test_links_to_what_the_commit_does_not_have(tree: Path, tmp_path: Path) -> None:
    (tree / "vllm" / "same.py").symlink_to("v1/utils.py")
    (tree / "vllm" / "folder").symlink_to("v1")
    (tmp_path / "far.py").write_text("FAR = 1\n")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "links")
    assert changed(tree) == []
    (tree / "vllm" / "far.py").symlink_to(tmp_path / "far.py")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "far")
    assert changed(tree) == ["vllm/far.py"]


def test_a_submodule_is_compared_too(tree: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    git(tmp_path, "init", "-q", str(part))
    (part / "op.cu").write_text("// one\n")
    git(part, "add", ".")
    git(part, "commit", "-qm", "part")
    git(tree, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(part), "csrc/part")
    git(tree, "commit", "-qm", "with a submodule")
    assert changed(tree) == []
    git(tree / "csrc" / "part", "update-index", "--assume-unchanged", "op.cu")
    (tree / "csrc" / "part" / "op.cu").write_text("// two\n")
    assert changed(tree) == ["csrc/part/op.cu"]
    shutil.rmtree(tree / ".git" / "modules")
    assert changed(tree) is None


@pytest.mark.parametrize("how", ["missing", "refuses", "moved", "empty", "index", "elsewhere"])
def test_what_git_cannot_say_is_unknown(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "missing":
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    elif how == "refuses":
        (tree / ".git" / "config").write_text("[core\n")
    elif how == "moved":
        linked = tmp_path / "linked"
        git(tree, "worktree", "add", "-q", "--detach", str(linked))
        shutil.rmtree(tree / ".git")
        tree = linked
    elif how == "empty":
        git(tmp_path, "init", "-q")  # not that repository
        shutil.rmtree(tree / ".git")
        (tree / ".git").mkdir()
    elif how == "index":
        (tree / ".git" / "index").write_bytes(b"damaged")
    else:
        git(tree, "config", "core.worktree", str(tmp_path))
    found = _of_worktree(open_worktree(tree))
    assert found["worktree_dirty"] is None and found["worktree_diff_sha256"] is None
    assert len(found["tree_sha256"]) == 64
    assert (found["vllm_commit"] is None) == (how != "index")


def test_why_there_is_no_version(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_VERSION_OVERRIDE")
    (tree / ".git" / "config").write_text("[core\n")
    with pytest.raises(Missing, match="bad config line 1"):
        open_worktree(tree)

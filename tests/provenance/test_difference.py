"""What a worktree is besides its commit or release has one hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.difference import Difference, difference
from bench_prep.provenance.worktree import open_worktree

from .test_worktree import checkout, git

__all__ = ["checkout"]
UTILS = "vllm/v1/utils.py"


def found(root: Path) -> Difference:
    result = difference(open_worktree(root))
    assert result is not None
    return result


@pytest.fixture
def tree(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_VERSION_OVERRIDE", "0.32.0")
    return checkout


def test_a_clean_checkout(tree: Path) -> None:
    (tree / "vllm" / "_version.py").write_text("made by a build, and ignored")
    assert found(tree) == Difference({})
    assert found(tree).sha256 is None


def test_each_kind_of_change_counts(tree: Path) -> None:
    hashes = set()
    (tree / UTILS).write_text("TWO = 2\n")
    hashes.add(found(tree).sha256)
    git(tree, "add", ".")
    assert found(tree).sha256 in hashes, "staged or not is the same tree"
    (tree / UTILS).write_text("THREE = 3\n")
    hashes.add(found(tree).sha256)
    (tree / "vllm" / "new file.py").write_text("")
    hashes.add(found(tree).sha256)
    (tree / "csrc" / "kernel.cu").unlink()
    hashes.add(found(tree).sha256)
    assert len(hashes) == 4 and None not in hashes
    assert found(tree).files == {
        "csrc/kernel.cu": "deleted",
        "vllm/new file.py": hashlib.sha256(b"").hexdigest(),
        UTILS: hashlib.sha256(b"THREE = 3\n").hexdigest(),
    }
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "second")
    assert found(tree).sha256 is None


def test_the_same_change_has_the_same_hash_elsewhere(tree: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(tree), str(clone))
    for root in (tree, clone):
        (root / UTILS).write_text("TWO = 2\n")
    assert found(tree).sha256 == found(clone).sha256


def write_release(root: Path, only_python: bool) -> None:
    sources = open_worktree(root).sources().items()
    hashes = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in sources
        if not only_python or (name.startswith("vllm/") and name.endswith(".py"))
    }
    (cache_dir() / "official").mkdir(exist_ok=True)
    (cache_dir() / "official" / "0.32.0.json").write_text(json.dumps(hashes))


@pytest.mark.parametrize("only_python", [True, False], ids=["older cache", "cache"])
def test_a_source_distribution_differs_from_its_release(
    small_vllm: Path, only_python: bool
) -> None:
    write_release(small_vllm, only_python)
    assert found(small_vllm).files == {}
    (small_vllm / UTILS).write_text("TWO = 2\n")
    (small_vllm / "vllm" / "v1" / "worker" / "block_table.py").unlink()
    (small_vllm / "csrc" / "kernel.cu").write_text("edited")
    named = {UTILS, "vllm/v1/worker/block_table.py"}
    assert set(found(small_vllm).files) == named | (set() if only_python else {"csrc/kernel.cu"})


def test_a_release_that_was_never_fetched(small_vllm: Path) -> None:
    assert difference(open_worktree(small_vllm)) is None


def test_a_release_names_its_commit(small_vllm: Path) -> None:
    (small_vllm / "vllm" / "_version.py").write_text("__commit_id__ = commit_id = 'g5df63a720'\n")
    assert open_worktree(small_vllm).commit == "5df63a720"

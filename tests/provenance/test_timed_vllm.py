"""The provenance columns of a row, for each way in which the timed vLLM can come about."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench_prep.errors import NotTheWorktree
from bench_prep.provenance import timed_vllm as source
from bench_prep.provenance.build import build_wheel
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.install import install_wheel, installed_vllm
from bench_prep.provenance.timed_vllm import Source, build_only, verified_vllm, verified_worktrees
from bench_prep.provenance.worktree import open_worktree
from bench_prep.stages import Stages

from .conftest import write_parts, write_small_vllm
from .test_worktree import git

pytest.importorskip("setuptools")
UTILS = "vllm/v1/utils.py"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for this environment's site-packages, so that nothing of it is replaced."""
    monkeypatch.setenv("BENCH_PREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_VERSION_OVERRIDE", "0.32.0")
    folder = tmp_path / "site"
    monkeypatch.setattr(source, "installed_vllm", lambda: installed_vllm(folder))
    monkeypatch.setattr(
        source, "install_wheel", lambda built, update: install_wheel(built, update, site=folder)
    )
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = write_small_vllm(tmp_path / "tree")
    (root / ".gitignore").write_text("_version.py\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return write_parts(tmp_path)


def columns(**options: Any) -> dict[str, Any]:
    stages = Stages(Console(file=io.StringIO()))
    return verified_vllm(Source(**options), "cpu", stages)[1]


def test_all_three_ways_record_the_same(site: Path, checkout: Path, parts: Path) -> None:
    (checkout / UTILS).write_text("TWO = 2\n")
    built = columns(worktree=checkout, precompiled=parts)
    assert built.pop("compared") is True
    assert built["worktree_dirty"] is True
    lengths = {name: len(value) for name, value in built.items() if isinstance(value, str)}
    assert lengths == {
        "vllm_commit": 40,
        "worktree_diff_sha256": 64,
        "tree_sha256": 64,
        "wheel_sha256": 64,
        "key_sources_sha256": 64,
    }
    compared = columns(worktree=checkout, build=False)
    assert compared.pop("compared") is True
    assert compared == built
    alone = columns()
    assert alone.pop("compared") is False
    assert alone == built


def test_a_clean_checkout(site: Path, checkout: Path, parts: Path) -> None:
    found = columns(worktree=checkout, precompiled=parts)
    assert found["worktree_dirty"] is False
    assert found["worktree_diff_sha256"] is None


def test_a_source_distribution(site: Path, tmp_path: Path, parts: Path) -> None:
    root = write_small_vllm(tmp_path / "tree")
    (root / "vllm" / "_version.py").write_text("__commit_id__ = commit_id = 'g5df63a720'\n")
    release = {n: file_sha256(path) for n, path in open_worktree(root).sources().items()}
    (cache_dir() / "official").mkdir()
    (cache_dir() / "official" / "0.32.0.json").write_text(json.dumps(release))
    assert columns(worktree=root, precompiled=parts)["worktree_dirty"] is False
    (root / UTILS).write_text("TWO = 2\n")
    found = columns(worktree=root, precompiled=parts)
    assert found["vllm_commit"] == "5df63a720"
    assert found["worktree_dirty"] is True
    assert len(found["worktree_diff_sha256"]) == 64


def test_a_vllm_that_was_not_built_here(site: Path, checkout: Path, parts: Path) -> None:
    install_wheel(build_wheel(open_worktree(checkout), parts, "cpu", print), site=site)
    shutil.rmtree(cache_dir() / "wheels")
    found = columns()
    assert found["wheel_sha256"] and found["key_sources_sha256"]
    for name in ("vllm_commit", "tree_sha256", "worktree_dirty", "worktree_diff_sha256"):
        assert found[name] is None


def test_a_tree_that_the_installed_wheel_was_not_built_from(
    site: Path, checkout: Path, parts: Path
) -> None:
    columns(worktree=checkout, precompiled=parts)
    (checkout / "csrc" / "kernel.cu").write_text("__global__ void other() {}\n")
    assert columns(worktree=checkout, build=False)["tree_sha256"] is None
    with pytest.raises(NotTheWorktree, match=r"csrc/kernel\.cu changed in the worktree"):
        columns(worktree=checkout, build=False, precompiled=parts)


def test_another_worktree_is_refused(site: Path, checkout: Path, parts: Path) -> None:
    columns(worktree=checkout, precompiled=parts)
    (checkout / UTILS).write_text("TWO = 2\n")
    with pytest.raises(NotTheWorktree, match="utils"):
        columns(worktree=checkout, build=False)
    assert columns(worktree=checkout, precompiled=parts)["worktree_dirty"] is True


def test_edited_compiled_sources_are_not_timed_with_a_wheel_s_parts(
    site: Path, checkout: Path, parts: Path
) -> None:
    (checkout / "csrc" / "kernel.cu").write_text("__global__ void other() {}\n")
    with pytest.raises(NotTheWorktree, match=r"csrc/kernel\.cu changed in the worktree"):
        columns(worktree=checkout, precompiled=parts)
    assert not site.exists()


def commit(root: Path) -> str:
    found = open_worktree(root).commit
    assert found is not None
    return found


def test_compiled_sources_by_which_two_worktrees_differ(
    site: Path, checkout: Path, parts: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(checkout), str(other))
    (other / "csrc" / "new.cu").touch()
    git(other, "add", ".")
    git(other, "commit", "-qm", "second")
    pair = Source(worktree=checkout, against=other, precompiled=parts)
    with pytest.raises(NotTheWorktree, match=r"csrc/new\.cu differs between the worktrees"):
        verified_worktrees(pair, "cpu", Stages(Console(file=io.StringIO())))
    assert not (cache_dir() / "wheels").exists()


def told(checkout: Path, parts: Path) -> list[str]:
    """What a build says of the compiled sources."""
    shown = io.StringIO()
    build_only(open_worktree(checkout), parts, "cpu", False, Stages(Console(file=shown)))
    return [line.strip() for line in shown.getvalue().splitlines() if "Rust" in line]


class TestCommittedChanges:
    """Of a checkout and the compiled parts of a wheel of version 1."""

    @pytest.fixture(autouse=True)
    def _committed(self, site: Path, checkout: Path) -> None:
        git(checkout, "tag", "v1")
        (checkout / "csrc" / "kernel.cu").write_text("__global__ void other() {}\n")
        git(checkout, "commit", "-qam", "second")

    def test_since_the_release_tag(self, checkout: Path, parts: Path) -> None:
        with pytest.raises(NotTheWorktree, match=r"csrc/kernel\.cu changed in the worktree"):
            told(checkout, parts)
        git(checkout, "tag", "-f", "v1")
        (checkout / UTILS).write_text("TWO = 2\n")
        git(checkout, "commit", "-qam", "third")
        assert told(checkout, parts) == []

    def test_since_the_commit_that_the_wheel_names(self, checkout: Path, parts: Path) -> None:
        with zipfile.ZipFile(parts, "a") as wheel:
            wheel.writestr("vllm/_version.py", f"commit_id = 'g{commit(checkout)[:9]}'\n")
        assert told(checkout, parts) == []
        (checkout / "csrc" / "kernel.cu").write_text("__global__ void kernel() {}\n")
        git(checkout, "commit", "-qam", "as in v1")
        with pytest.raises(NotTheWorktree, match=r"csrc/kernel\.cu changed in the worktree"):
            told(checkout, parts)

    def test_where_there_is_no_knowing(self, checkout: Path, parts: Path) -> None:
        git(checkout, "tag", "-d", "v1")
        said = f"not known: whether its C++, CUDA and Rust sources are those of {parts.name}"
        assert told(checkout, parts) == [said]
        (checkout / "csrc" / "kernel.cu").write_text("edited\n")
        with pytest.raises(NotTheWorktree, match=r"csrc/kernel\.cu changed in the worktree"):
            told(checkout, parts)

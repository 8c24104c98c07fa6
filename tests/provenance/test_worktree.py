"""What a worktree is, what enters its build, and its version."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench_prep.errors import Missing, UsageError
from bench_prep.provenance.worktree import is_build_output, open_worktree


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(small_vllm: Path) -> Path:
    (small_vllm / "PKG-INFO").unlink()
    (small_vllm / ".gitignore").write_text("vllm/_version.py\n*.so\n")
    git(small_vllm, "init", "-q")
    git(small_vllm, "add", ".")
    git(small_vllm, "commit", "-qm", "first")
    return small_vllm


def test_a_source_distribution(small_vllm: Path) -> None:
    worktree = open_worktree(small_vllm)
    assert worktree.version == "0.32.0"
    assert worktree.commit is None and worktree.changed_since("HEAD") is None


def test_a_git_checkout(checkout: Path) -> None:
    git(checkout, "tag", "proto-v9.0.0")
    with pytest.raises(Missing) as error:
        open_worktree(checkout)  # a tag of a Rust crate is no release
    assert "VLLM_VERSION_OVERRIDE" in error.value.remedy
    git(checkout, "tag", "v0.31.1")
    worktree = open_worktree(checkout)
    assert worktree.version == "0.31.1"
    assert worktree.commit is not None and len(worktree.commit) == 40
    assert worktree.changed_since("HEAD") == []
    (checkout / "vllm" / "v1" / "utils.py").write_text("TWO = 2\n")
    changed = open_worktree(checkout)
    assert changed.changed_since("HEAD") == ["vllm/v1/utils.py"]
    assert changed.version.startswith("0.31.2.dev0+g")
    assert ".d2" not in changed.version


def test_a_distribution_inside_another_repository_is_not_that_repository(checkout: Path) -> None:
    inner = checkout / "downloads" / "vllm"
    (inner / "vllm").mkdir(parents=True)
    (inner / "vllm" / "__init__.py").touch()
    (inner / "pyproject.toml").write_text((checkout / "pyproject.toml").read_text())
    (inner / "PKG-INFO").write_text("Name: vllm\nVersion: 0.30.0\n")
    worktree = open_worktree(inner)
    assert (worktree.version, worktree.commit) == ("0.30.0", None)
    assert worktree.changed_since("HEAD") is None


def test_the_version_can_be_given(small_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small_vllm / "PKG-INFO").unlink()
    with pytest.raises(Missing, match="no version"):
        open_worktree(small_vllm)
    monkeypatch.setenv("VLLM_VERSION_OVERRIDE", "1.2.3")
    assert open_worktree(small_vllm).version == "1.2.3"


def test_what_is_not_a_worktree(tmp_path: Path, small_vllm: Path) -> None:
    with pytest.raises(UsageError, match="not a folder"):
        open_worktree(tmp_path / "nothing")
    with pytest.raises(UsageError, match="not a folder"):
        open_worktree(small_vllm / "setup.py")
    with pytest.raises(UsageError, match="not a vLLM worktree"):
        open_worktree(tmp_path)
    pyproject = small_vllm / "pyproject.toml"
    for text in (pyproject.read_text().replace('"vllm"', '"vllm-omni"'), "not toml", "[project]"):
        pyproject.write_text(text)
        with pytest.raises(UsageError, match="not a vLLM worktree"):
            open_worktree(small_vllm)


def test_the_hash_knows_each_source_and_ignores_what_builds_leave(small_vllm: Path) -> None:
    worktree = open_worktree(small_vllm)
    before = worktree.tree_hash()
    for name in (
        "build/lib/vllm/v1/utils.py",
        "dist/x.whl",
        "vllm.egg-info/PKG-INFO",
        "vllm/__pycache__/a.cpython-311.pyc",
        "vllm/_C.abi3.so",
        "vllm/_version.py",
        "vllm/vllm-rs",
        "vllm/vllm_flash_attn/layers/rotary.py",
        "vllm/third_party/deep_gemm/include/a.cuh",
        "rust/target/debug/x",
        ".git/HEAD",
        ".deps/cutlass/a.h",
        "docs/a.md",
        "my-venv/pyvenv.cfg",
        "my-venv/lib/a.py",
    ):
        (small_vllm / name).parent.mkdir(parents=True, exist_ok=True)
        (small_vllm / name).write_text("something")
    assert worktree.tree_hash() == before
    seen = {before}
    for name in ("csrc/kernel.cu", "vllm/data.json", "vllm/v1/utils.py", "requirements/build/x"):
        (small_vllm / name).parent.mkdir(parents=True, exist_ok=True)
        (small_vllm / name).write_text("changed")
        assert worktree.tree_hash() not in seen
        seen.add(worktree.tree_hash())
    (small_vllm / "vllm" / "data.json").rename(small_vllm / "vllm" / "moved.json")
    assert worktree.tree_hash() not in seen


def test_links_are_followed_but_not_in_circles(small_vllm: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "op.cu").write_text("one")
    (small_vllm / "csrc" / "linked").symlink_to(elsewhere)
    (small_vllm / "csrc" / "circle").symlink_to(small_vllm)
    (small_vllm / "csrc" / "itself").symlink_to("itself")
    worktree = open_worktree(small_vllm)
    before = worktree.tree_hash()
    assert "csrc/linked/op.cu" in worktree.sources()
    (elsewhere / "op.cu").write_text("two")
    assert worktree.tree_hash() != before


def test_a_tracked_file_is_a_source_whatever_its_name(checkout: Path) -> None:
    vendored = checkout / "vllm" / "vllm_flash_attn" / "fork.py"
    vendored.parent.mkdir()
    vendored.write_text("ours\n")
    assert "vllm/vllm_flash_attn/fork.py" not in open_with_version(checkout)
    git(checkout, "add", "-f", str(vendored))
    assert "vllm/vllm_flash_attn/fork.py" in open_with_version(checkout)


def open_with_version(root: Path) -> dict[str, Path]:
    (root / "PKG-INFO").write_text("Version: 1.0\n")
    return open_worktree(root).python_sources()


def test_build_outputs() -> None:
    assert is_build_output("vllm/_version.py")
    assert is_build_output("vllm/third_party/flashmla/flash_mla_interface.py")
    assert not is_build_output("vllm/third_party/flashmla/__init__.py")
    assert not is_build_output("vllm/vllm_flash_attn/flash_attn_interface.py")
    assert not is_build_output("vllm/v1/worker/block_table.py")

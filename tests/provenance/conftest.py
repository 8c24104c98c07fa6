"""Small stand-ins for a vLLM worktree, so that builds take a second."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench_prep.provenance.build import BuiltWheel, build_wheel
from bench_prep.provenance.install import install_wheel
from bench_prep.provenance.official import official_precompiled, official_worktree
from bench_prep.provenance.staging import stage
from bench_prep.provenance.worktree import Worktree, open_worktree

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
dynamic = ["version"]
[tool.setuptools.packages.find]
include = ["vllm*"]
"""
SETUP = """
import os
from setuptools import setup
print("building for", os.environ.get("VLLM_TARGET_DEVICE"))
open("vllm/_version.py", "w").write("version = %r" % os.environ["VLLM_VERSION_OVERRIDE"])
setup(version=os.environ["VLLM_VERSION_OVERRIDE"])
"""
FILES = {
    "pyproject.toml": PYPROJECT,
    "setup.py": SETUP,
    "PKG-INFO": "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0\n\nText: no header\n",
    "vllm/__init__.py": "",
    "vllm/v1/__init__.py": "",
    "vllm/v1/utils.py": "ONE = 1\n",
    "vllm/v1/worker/__init__.py": "",
    "vllm/v1/worker/block_table.py": "TABLE = []\n",
    "vllm/data.json": "{}",
    "csrc/kernel.cu": "__global__ void kernel() {}\n",
    "tests/test_it.py": "",
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_PREP_CACHE", str(tmp_path / "cache"))
    for name in ("VLLM_VERSION_OVERRIDE", "VLLM_TARGET_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def write_small_vllm(root: Path) -> Path:
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def write_parts(folder: Path) -> Path:
    path = folder / "vllm_parts-1-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("vllm/_C.abi3.so", b"wide")
        wheel.writestr("vllm/_C_AVX2.abi3.so", b"narrow")
    return path


@pytest.fixture
def small_vllm(tmp_path: Path) -> Path:
    """The root of a project that has vLLM's name and shape, with a build of a second."""
    return write_small_vllm(tmp_path / "small")


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A wheel with compiled parts."""
    return write_parts(tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltWheel:
    """The wheel of `small_vllm` as it is before a test changes it."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_PREP_CACHE", str(folder / "cache"))
        worktree = open_worktree(write_small_vllm(folder / "small"))
        return build_wheel(worktree, write_parts(folder), "cpu", print)


@pytest.fixture(scope="session")
def _installed_once(built: BuiltWheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_PREP_CACHE", str(folder / "cache"))
        assert install_wheel(built, site=folder / "site")
    return folder / "site"


@pytest.fixture
def site(_installed_once: Path, tmp_path: Path) -> Path:
    """A site-packages folder with `built` installed, for one test to damage."""
    return Path(shutil.copytree(_installed_once, tmp_path / "site"))


@dataclass
class Chain:
    """The real vLLM: a copy of the official worktree, its wheel, and where that is installed."""

    worktree: Worktree
    parts: Path
    cache: Path
    site: Path
    built: BuiltWheel


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """Built once; a test puts back what it changes, or changes a copy."""
    for module in ("torch", "setuptools_rust"):
        if find_spec(module) is None:
            pytest.skip(f"vLLM's build needs {module}")
    folder = tmp_path_factory.mktemp("chain")
    official, parts = official_worktree(), official_precompiled()
    stage(official, folder / "vllm-0.32.0")
    worktree = open_worktree(folder / "vllm-0.32.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_PREP_CACHE", str(folder / "cache"))
        built = build_wheel(worktree, parts, "cpu", print)
        assert install_wheel(built, site=folder / "site")
    yield Chain(worktree, parts, folder / "cache", folder / "site", built)
    shutil.rmtree(folder)


@pytest.fixture
def said() -> Callable[[str], None]:
    """A progress function that remembers its lines in `.lines`, but not how long it took."""

    def say(line: str) -> None:
        if not re.match(r"\d+ s\b", line):
            say.lines.append(line)  # type: ignore[attr-defined]

    say.lines = []  # type: ignore[attr-defined]
    return say

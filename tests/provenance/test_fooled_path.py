"""A second vllm, wherever it lies: found with exit code 5, or never imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench_prep.errors import Missing, NotTheWorktree
from bench_prep.provenance import verify
from bench_prep.provenance.build import BuiltWheel, build_wheel
from bench_prep.provenance.install import install_wheel, installed_vllm
from bench_prep.provenance.verify import require_ok
from bench_prep.provenance.worktree import open_worktree
from tests.child.said import run_isolated
from tests.environments import make_bare_environment, site_packages

pytest.importorskip("setuptools")


@dataclass
class Environment:
    """An environment of its own with the small vLLM installed from its wheel."""

    folder: Path
    root: Path

    @property
    def site(self) -> Path:
        return site_packages(self.folder)

    def call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / "python", *arguments],
            cwd=self.root.parent,
            env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
        )

    def verify_install(self) -> subprocess.CompletedProcess[str]:
        return self.call("-P", "-m", "bench_prep", "verify-install", "--worktree", self.root)

    def fooled_by(self, *texts: str | Path) -> None:
        done = self.verify_install()
        assert done.returncode == 5, done.stdout + done.stderr
        for text in texts:
            assert str(text) in done.stderr
        assert "\ntry: " in done.stderr

    def not_fooled(self) -> None:
        """Verified, and the launched process runs the installed file."""
        done = self.verify_install()
        assert done.returncode == 0, done.stderr
        code = (
            "from pathlib import Path\n"
            "from tests.child.said import run_isolated\n"
            "job = {'code': 'import vllm.v1.utils as u; emit({\"file\": u.__file__})'}\n"
            "run_isolated('tests.child.probe', job, {}, print, Path('probe.log'))\n"
        )
        done = self.call("-P", "-c", code)
        assert str(self.site / "vllm" / "v1" / "utils.py") in done.stdout, done.stderr


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fooled") / "env"
    make_bare_environment(folder)
    return folder


@pytest.fixture
def environment(bare: Path, site: Path, small_vllm: Path) -> Iterator[Environment]:
    found = Environment(bare, small_vllm)
    before = set(found.site.iterdir())
    for entry in site.iterdir():
        entry.rename(found.site / entry.name)
    yield found
    for path in set(found.site.iterdir()) - before:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def second_vllm(folder: Path) -> Path:
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("SECOND = 1\n")
    return folder


def test_nothing_fools_a_plain_installation(environment: Environment) -> None:
    environment.not_fooled()


@pytest.mark.parametrize("first", [True, False], ids=["earlier", "later"])
def test_a_second_vllm_by_a_pth_file(environment: Environment, tmp_path: Path, first: bool) -> None:
    second = second_vllm(tmp_path / "second")
    line = f"import sys; sys.path.insert(0, {str(second)!r})" if first else str(second)
    (environment.site / "second.pth").write_text(line + "\n")
    environment.fooled_by("a second vllm is on the path", f"package {second / 'vllm'}")
    if first:
        environment.fooled_by(f"Python imports vllm from {second / 'vllm'}")


def test_a_second_vllm_in_an_archive(environment: Environment, tmp_path: Path) -> None:
    archive = tmp_path / "second.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("vllm/__init__.py", "")
    line = f"import sys; sys.path.insert(0, {str(archive)!r})\n"
    (environment.site / "second.pth").write_text(line)
    environment.fooled_by(f"Python imports vllm from {archive}")


def test_a_second_vllm_without_source(environment: Environment, tmp_path: Path) -> None:
    second = tmp_path / "second"
    (second / "vllm").mkdir(parents=True)
    (second / "vllm" / "__init__.pyc").touch()
    (environment.site / "second.pth").write_text(f"{second}\n")
    environment.fooled_by(f"package {second / 'vllm'}")


def test_a_finder_of_its_own(environment: Environment, tmp_path: Path) -> None:
    """As setuptools' editable installs have it: no folder on the path gives it away."""
    second = second_vllm(tmp_path / "second") / "vllm" / "__init__.py"
    (environment.site / "finder_of_second.py").write_text(
        textwrap.dedent(f"""
        import sys
        from importlib.util import spec_from_file_location
        class Finder:
            def find_spec(name, path=None, target=None):
                if name == "vllm":
                    return spec_from_file_location(name, {str(second)!r})
        sys.meta_path.insert(0, Finder)
        """)
    )
    (environment.site / "second.pth").write_text("import finder_of_second\n")
    environment.fooled_by(f"Python imports vllm from {second}")


def test_a_namespace_package_on_the_path(environment: Environment, tmp_path: Path) -> None:
    namespace = tmp_path / "namespace"
    (namespace / "vllm" / "v1").mkdir(parents=True)
    (namespace / "vllm" / "v1" / "utils.py").write_text("ONE = 666\n")
    line = f"import sys; sys.path.insert(0, {str(namespace)!r})\n"
    (environment.site / "namespace.pth").write_text(line)
    environment.not_fooled()  # a package with an __init__.py wins, wherever it is on the path


def test_an_installed_package_that_became_a_namespace(environment: Environment) -> None:
    (environment.site / "vllm" / "__init__.py").unlink()
    environment.fooled_by("vllm/__init__.py (missing)", "a namespace package")


def test_an_editable_install(environment: Environment, tmp_path: Path) -> None:
    for path in environment.site.glob("vllm*"):
        shutil.rmtree(path)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", environment.folder / "bin" / "python", "install",
         "--no-deps", "--no-index", "--no-build-isolation", "-e", environment.root],
        env=os.environ | {"VLLM_VERSION_OVERRIDE": "0.32.0"},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    environment.fooled_by("it is an editable install")


def test_a_vllm_folder_in_tmp(tmp_path: Path) -> None:
    """The timing process works in a folder under /tmp, never in /tmp itself."""
    decoy = Path("/tmp/vllm")
    if decoy.exists():
        pytest.skip("there is one already, which is not ours")
    events: list[dict[str, Any]] = []
    code = (
        "import importlib.util, sys; s = importlib.util.find_spec('vllm');"
        "emit({'path': sys.path, 'vllm': s and s.origin})"
    )
    second_vllm(Path("/tmp"))
    try:
        run_isolated("tests.child.probe", {"code": code}, {}, events.append, tmp_path / "log")
    finally:
        shutil.rmtree(decoy)
    (event,) = events
    assert "/tmp" not in event["path"]
    assert event["vllm"] != str(decoy / "__init__.py")


def with_tag(wheel: Path, folder: Path, tag: str) -> Path:
    """The wheel as another Python would have built it."""
    name, version, _ = wheel.name.split("-", 2)
    made = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith("/WHEEL"):
                content = content.replace(b"py3-none-any", tag.encode())
            new.writestr(info, content)
    return made


def test_a_wheel_built_by_another_python_is_not_installed(
    built: BuiltWheel, tmp_path: Path
) -> None:
    wheel = with_tag(built.path, tmp_path, "cp39-cp39-linux_x86_64")
    other = BuiltWheel(wheel, "0" * 64, built.tree_hash, True, 0.0, tmp_path / "build.log")
    with pytest.raises(Missing, match="not a supported wheel on this platform"):
        install_wheel(other, site=tmp_path / "site")
    assert installed_vllm(tmp_path / "site") is None


def test_an_installed_wheel_that_another_python_built(site: Path, small_vllm: Path) -> None:
    file = next(site.glob("vllm-*.dist-info")) / "WHEEL"
    file.write_text(file.read_text().replace("py3-none-any", "cp39-cp39-linux_x86_64"))
    found = installed_vllm(site)
    assert found is not None
    with pytest.raises(NotTheWorktree, match="built for another Python or machine: cp39"):
        require_ok(verify.verify(open_worktree(small_vllm), found))


def test_a_cached_wheel_of_another_python_is_not_used(
    small_vllm: Path, parts: Path, said: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree = open_worktree(small_vllm)
    with monkeypatch.context() as patch:
        patch.setattr(sys.implementation, "cache_tag", "cpython-39")
        build_wheel(worktree, parts, "cpu", said)
    assert not build_wheel(worktree, parts, "cpu", said).cached

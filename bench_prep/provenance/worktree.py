"""The worktree: which files of a vLLM checkout enter its wheel, their hash, and its version."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import subprocess
import tomllib
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path

from bench_prep.errors import Missing, UsageError

#: Top-level folders that no part of vLLM's build reads, or that it makes.
_SKIPPED_AT_TOP = {"docs", "tests", "examples", "build", "dist"}
_COMPILED_SUFFIXES = (".so", ".pyc", ".o")

#: What vLLM's own build writes among the sources: vLLM's .gitignore and the members that its
#: setup.py takes from a wheel with compiled parts.
_BUILD_OUTPUT = re.compile(
    r"""vllm/(
        _version\.py
      | vllm-rs
      | vllm_flash_attn/(?!__init__\.py$|flash_attn_interface\.py$|\.gitkeep$).*
      | third_party/(triton_kernels|deep_gemm|fmha_sm100|tml_fa4)/.*
      | third_party/flashmla/flash_mla_interface\.py
    )$
    | rust/target/.*""",
    re.VERBOSE,
)

#: vLLM's own rule for its version: release tags, not the tags of its Rust crates.
_DESCRIBE = ["git", "describe", "--dirty", "--tags", "--long", "--abbrev=40", "--match", "v[0-9]*"]


def is_package_source(path: str) -> bool:
    """Whether this path is that of a Python file of the package `vllm`."""
    return path.startswith("vllm/") and path.endswith(".py")


def is_build_output(path: str) -> bool:
    """Whether vLLM's build writes this file (relative, with slashes) into the tree or the wheel."""
    return path.endswith(_COMPILED_SUFFIXES) or _BUILD_OUTPUT.match(path) is not None


@dataclass(frozen=True)
class Worktree:
    """A vLLM checkout or unpacked source distribution."""

    root: Path
    version: str

    def sources(self) -> dict[str, Path]:
        """Every file that enters the build, by its path relative to the root, sorted.

        Links are followed, so that what counts is what is read.
        """
        return dict(sorted(self._walk(self.root, "", (self.root.resolve(),))))

    def python_sources(self) -> dict[str, Path]:
        """The Python files of the package `vllm` among `sources()`."""
        return {name: path for name, path in self.sources().items() if is_package_source(name)}

    def tree_hash(self) -> str:
        """SHA-256 over the paths and contents of `sources()`, as hexadecimal digits."""
        tree = hashlib.sha256()
        for name, path in self.sources().items():
            add_to_tree_hash(tree, name, path.read_bytes())
        return tree.hexdigest()

    @cached_property
    def commit(self) -> str | None:
        """The git commit; outside a checkout the one that a source distribution names, or None."""
        return self._git("rev-parse", "HEAD") if self.is_git else named_commit(self.root / "vllm")

    @cached_property
    def dirty(self) -> bool:
        """Whether a git checkout has changes that are not committed; False without git."""
        return self.is_git and bool(self._git("status", "--porcelain"))

    def changed_since(self, commit: str) -> list[str] | None:
        """The files that are not as in this commit or tag, ignored ones left out; None outside a
        checkout, or where it does not have that commit.
        """
        if not self.is_git:
            return None
        changed = self._git("diff", "--name-only", "--no-renames", "-z", f"{commit}^{{commit}}")
        added = self._git("ls-files", "--others", "--exclude-standard", "-z")
        if changed is None or added is None:
            return None
        return sorted({*changed.split("\0"), *added.split("\0")} - {""})

    @cached_property
    def is_git(self) -> bool:
        """Whether it is a git checkout."""
        # A distribution unpacked inside some other repository is not that repository.
        top = self._git("rev-parse", "--show-toplevel")
        return top is not None and Path(top).resolve() == self.root.resolve()

    @cached_property
    def _tracked(self) -> frozenset[str]:
        listed = self._git("ls-files", "-z") if self.is_git else None
        return frozenset((listed or "").split("\0"))

    def _git(self, *arguments: str) -> str | None:
        return _git(self.root, *arguments)

    def _walk(
        self, folder: Path, prefix: str, above: tuple[Path, ...]
    ) -> Iterator[tuple[str, Path]]:
        for entry in os.scandir(folder):
            name, path = prefix + entry.name, Path(entry.path)
            if _leads_nowhere(entry):
                continue
            if entry.is_dir():
                real = path.resolve()
                if real not in above and not _is_skipped(path, at_top=not prefix):
                    yield from self._walk(path, name + "/", (*above, real))
            elif entry.is_file() and (not is_build_output(name) or name in self._tracked):
                yield name, path


def open_worktree(path: Path) -> Worktree:
    """The vLLM worktree at `path` and its version.

    The version is `$VLLM_VERSION_OVERRIDE` (vLLM's own switch), else the source distribution's,
    else what setuptools-scm makes of the git tags.

    Raises:
        UsageError: not a folder, or not vLLM.
        Missing: no version can be found.
    """
    root = path.expanduser().absolute()
    if not root.is_dir():
        raise UsageError(f"the worktree {root} is not a folder", "give a vLLM checkout")
    if not (root / "vllm" / "__init__.py").is_file() or _project_name(root) != "vllm":
        raise UsageError(
            f"{root} is not a vLLM worktree (no vllm/__init__.py, or another project's "
            "pyproject.toml)",
            "give the folder that holds vLLM's pyproject.toml",
        )
    version = (
        os.environ.get("VLLM_VERSION_OVERRIDE") or _distribution_version(root) or _git_version(root)
    )
    if not version:
        raise Missing(
            f"no version can be found for {root}: it has no PKG-INFO and no release tag",
            "set VLLM_VERSION_OVERRIDE, for example to 0.32.0",
        )
    return Worktree(root, version)


def named_commit(package: Path | zipfile.Path) -> str | None:
    """The commit that the `_version.py` of a release or of an installed package names.

    `package` may also be the folder in a wheel (`zipfile.Path`).
    """
    try:
        text = (package / "_version.py").read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError):
        return None
    found = re.search(r"commit_id = '(?:g)?([0-9a-f]{7,40})'", text)
    return found[1] if found else None


def add_to_tree_hash(tree: hashlib._Hash, name: str, content: bytes) -> None:
    """Add one source; `tree_hash` is this for every source in the order of their names."""
    tree.update(name.encode(errors="surrogateescape") + b"\0" + hashlib.sha256(content).digest())


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    try:
        entry.stat()
    except OSError:
        return entry.is_symlink()  # to nothing, or to itself
    return False


def _is_skipped(folder: Path, at_top: bool) -> bool:
    name = folder.name
    if name == "__pycache__" or name.endswith(".egg-info") or (folder / "pyvenv.cfg").exists():
        return True
    return at_top and (
        name in _SKIPPED_AT_TOP or name.startswith(".") or name.startswith("cmake-build-")
    )


def _project_name(root: Path) -> str | None:
    try:
        table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        name = table["project"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _distribution_version(root: Path) -> str | None:
    try:
        text = (root / "PKG-INFO").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return HeaderParser().parsestr(text)["Version"]


def _git_version(root: Path) -> str | None:
    # Without a release tag setuptools-scm would make up 0.1.dev1.
    if _git(root, *_DESCRIBE[1:]) is None:
        return None
    try:
        scm = importlib.import_module("setuptools_scm")
    except ImportError:
        raise Missing(
            f"setuptools-scm is not installed, so the version of {root} cannot be computed",
            "pip install 'setuptools-scm>=8', or set VLLM_VERSION_OVERRIDE",
        ) from None
    with warnings.catch_warnings():
        # vLLM passes its command the same way; newer releases have another name for it.
        warnings.simplefilter("ignore", DeprecationWarning)
        version = str(scm.get_version(root=str(root), git_describe_command=_DESCRIBE))
    # A changed tree gets today's date, which would make yesterday's equal tree look different.
    return re.sub(r"\.d\d{8}$", "", version)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()

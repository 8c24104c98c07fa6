"""The worktree: which files of a vLLM checkout enter its wheel, their hash, and its version."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path

from packaging.version import InvalidVersion, Version

from bench_prep.errors import Missing, UsageError
from bench_prep.provenance.git import NoAnswer, git, is_blob

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
      | grpc/vllm_engine_pb2(_grpc)?\.pyi?
    )$
    | csrc/(
        quantization/machete/generated/.*
      | (quantization/marlin|moe/marlin_moe_wna16)/(sm\w+_kernel_\w+\.cu|kernel_selector\.h)
      | cpu/cpu_attn_dispatch_generated\.h
    )$
    | rust/target/.*""",
    re.VERBOSE,
)

#: vLLM's own rule for its version: release tags, not the tags of its Rust crates.
_DESCRIBE = ("describe", "--tags", "--long", "--abbrev=40", "--match", "v[0-9]*")
_LINK, _SUBMODULE = "120000", "160000"
#: Of the files beside the folders, those that a build may read though git was told to ignore them.
_READ_AT_TOP = (".cfg", ".in", ".py", ".toml", ".txt")


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

    @property
    def is_checkout(self) -> bool:
        """Whether it has a `.git` of its own, whatever git says of that."""
        # A distribution unpacked inside some other repository is not that repository.
        return os.path.lexists(self.root / ".git")

    @cached_property
    def commit(self) -> str | None:
        """The commit of a checkout, None where git cannot say; outside of one the commit that a
        source distribution names, or None.
        """
        if not self.is_checkout:
            return named_commit(self.root / "vllm")
        return self._git("rev-parse", "--verify", "HEAD")

    def changed_since(self, commit: str) -> list[str] | None:
        """The files that are not as in this commit or tag; None outside a checkout, or where git
        cannot say.

        Contents are compared, as they are on disk. What git was told to ignore counts where it
        enters the build; so does a link to what the commit does not have.
        """
        listing = self._git("ls-tree", "-r", "-z", "--full-tree", f"{commit}^{{commit}}")
        if listing is None or self._index is None:
            return None
        committed: dict[str, tuple[str, str]] = {}
        changed: set[str] = set()
        submodules = []
        for line in listing.split("\0")[:-1]:
            about, _, name = line.partition("\t")
            mode, _, blob = about.split()
            committed[name] = mode, blob
            inside = Worktree(self.root / name, self.version)
            if mode == _SUBMODULE and inside.is_checkout:
                names = inside.changed_since(blob)
                if names is None:
                    return None
                changed.update(f"{name}/{changed_one}" for changed_one in names)
                submodules.append(f"{name}/")
        top = os.path.realpath(self.root)

        def is_of_commit(path: Path) -> bool:
            return os.path.relpath(os.path.realpath(path), top) in committed

        for name, (mode, blob) in committed.items():
            path = self.root / name
            if mode == _SUBMODULE:
                same = not path.is_file()
            elif not os.path.lexists(path):
                # A sparse checkout may lack what enters no build.
                same = self._index.get(name) == "S" and _is_unread(name)
            elif mode == _LINK and path.is_file() and not is_of_commit(path):
                same = False
            else:
                same = _is_blob(path, mode, blob)
            if not same:
                changed.add(name)
        for name, path in self.sources().items():
            if name in committed or name.startswith(tuple(submodules)):
                continue
            if "/" in name or name.endswith(_READ_AT_TOP):
                changed.update([] if is_of_commit(path) else [name])
        added = (name for name in self._index if name not in committed)
        changed.update(name for name in added if os.path.lexists(self.root / name))
        return sorted(changed)

    @cached_property
    def _index(self) -> dict[str, str] | None:
        """What git lists, each with its tag: `?` for a file not added, `S` for one that a sparse
        checkout leaves out, other letters for the rest; None where git cannot say.
        """
        options = "--cached", "--others", "--exclude-standard", "-t", "-z"
        listing = self._git("ls-files", *options)
        if listing is None:
            return None
        return {line[2:]: line[0] for line in listing.split("\0")[:-1]}

    @cached_property
    def _tracked(self) -> frozenset[str]:
        return frozenset(name for name, tag in (self._index or {}).items() if tag != "?")

    def _git(self, *arguments: str) -> str | None:
        try:
            # A setting can name another folder as the work tree.
            top = git(self.root, "rev-parse", "--show-toplevel")
            if os.path.realpath(top) == os.path.realpath(self.root):
                return git(self.root, *arguments)
        except NoAnswer:
            pass
        return None

    def refusal(self) -> str:
        """What git says where it has nothing to say of a checkout; empty where it has."""
        try:
            git(self.root, "rev-parse", "HEAD")
        except NoAnswer as error:
            return str(error)
        return ""

    def described_version(self) -> str | None:
        """What setuptools-scm's rule, vLLM's own, makes of the release tags; None without one."""
        described = self._git(*_DESCRIBE)
        if described is None:
            return None
        tag, distance, node = described.rsplit("-", 2)
        try:
            version = str(Version(tag))
        except InvalidVersion:
            return None
        changed = self.changed_since("HEAD")
        if distance == "0" and changed is not None and self._tracked.isdisjoint(changed):
            return version
        # The date of a changed tree is left out: yesterday's equal tree would look different.
        following = re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), version)
        return f"{following}.dev{distance}+{node[:10]}"

    def _walk(
        self, folder: Path, prefix: str, above: tuple[Path, ...]
    ) -> Iterator[tuple[str, Path]]:
        for entry in os.scandir(folder):
            name, path = prefix + entry.name, Path(entry.path)
            # In a linked worktree or a submodule `.git` is a file that holds a path.
            if entry.name == ".git" or _leads_nowhere(entry):
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
    else what setuptools-scm's rule makes of the git tags.

    Raises:
        UsageError: not a folder, or not vLLM.
        Missing: no version can be found.
    """
    with suppress(RuntimeError):  # `~` of nobody
        path = path.expanduser()
    root = path.absolute()
    if not root.is_dir():
        raise UsageError(f"the worktree {root} is not a folder", "give a vLLM checkout")
    if not (root / "vllm" / "__init__.py").is_file() or _project_name(root) != "vllm":
        raise UsageError(
            f"{root} is not a vLLM worktree (no vllm/__init__.py, or another project's "
            "pyproject.toml)",
            "give the folder that holds vLLM's pyproject.toml",
        )
    worktree = Worktree(root, "")
    version = (
        os.environ.get("VLLM_VERSION_OVERRIDE")
        or _distribution_version(root)
        or worktree.described_version()
    )
    if not version:
        why = "it has no PKG-INFO and no release tag"
        if worktree.is_checkout:
            why = worktree.refusal() or why
        raise Missing(
            f"no version can be found for {root}: {why}",
            "set VLLM_VERSION_OVERRIDE, for example to 0.32.0",
        )
    return replace(worktree, version=version)


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
    return at_top and _is_unread(f"{name}/")


def _is_unread(name: str) -> bool:
    """Whether this path is below a top-level folder that no part of the build reads."""
    top, slash, _ = name.partition("/")
    return bool(slash) and (
        top in _SKIPPED_AT_TOP or top.startswith(".") or top.startswith("cmake-build-")
    )


def _is_blob(path: Path, mode: str, blob: str) -> bool:
    try:
        # As it is: `Path.readlink` would tidy it.
        link = os.readlink(path) if mode == _LINK else None  # noqa: PTH115
        content = path.read_bytes() if link is None else os.fsencode(link)
    except OSError:
        return False
    return is_blob(content, blob)


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

"""What a worktree is besides its commit or release: the files that differ, and one hash of them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.provenance.official import release_hashes
from bench_prep.provenance.worktree import (
    Worktree,
    is_build_output,
    is_package_source,
    named_commit,
)

DELETED = "deleted"


@dataclass(frozen=True)
class Difference:
    """The files that differ, each with its SHA-256 or `deleted`."""

    files: dict[str, str]

    @property
    def sha256(self) -> str | None:
        """One hash of the names and contents of the files; None where nothing differs."""
        return combined_sha256(self.files) if self.files else None


def difference(worktree: Worktree) -> Difference | None:
    """The uncommitted changes of a checkout, files not yet added among them, None where git cannot
    say; outside a checkout what is not the version's release, None where that is not known.
    """
    if not worktree.is_checkout:
        return _since_release(worktree)
    names = worktree.changed_since("HEAD")
    if names is None:
        return None
    return Difference({name: _digest(worktree.root / name) for name in names})


def _since_release(worktree: Worktree) -> Difference | None:
    release = release_hashes(worktree.version)
    if release is None:
        return None
    hashes = {name: file_sha256(path) for name, path in worktree.sources().items()}
    return difference_from_release(hashes, release)


def compiled_changes(worktree: Worktree, precompiled: Path) -> tuple[list[str], bool]:
    """The sources of compiled parts in which the worktree differs from those that the parts of a
    wheel were compiled from, as far as known; and whether all of that is known.

    A checkout has them at the commit that the wheel names, or at its version's release tag. Without
    either, and outside a checkout, there is `difference` alone; where git cannot say, the release.
    """
    made_from = _made_from(precompiled)
    since = map(worktree.changed_since, made_from)
    changed = next((names for names in since if names is not None), None)
    known = changed is not None
    if changed is None:
        differs = difference(worktree) or _since_release(worktree)
        changed = [] if differs is None else [*differs.files]
        is_release = not worktree.is_checkout and f"v{worktree.version}" in made_from
        known = differs is not None and is_release
    return [name for name in changed if is_compiled_source(name)], known


def is_compiled_source(name: str) -> bool:
    """Whether a file of a worktree is a source of its compiled parts."""
    return name.startswith(("csrc/", "cmake/", "rust/")) or name == "CMakeLists.txt"


def _made_from(wheel: Path) -> list[str]:
    """The commit and the release tag of which a wheel may have been made, the surer one first."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            commit = named_commit(zipfile.Path(opened, "vllm/"))
    except (OSError, zipfile.BadZipFile):
        return []  # whoever takes the parts from it says so
    _, _, rest = wheel.name.partition("-")
    tag = "v" + rest.partition("-")[0].partition("+")[0]
    return [tag] if commit is None else [commit, tag]


def difference_from_release(hashes: dict[str, str], release: dict[str, str]) -> Difference:
    """What differs between a worktree's files and a release's, of those that both could have."""
    if all(map(is_package_source, release)):  # recorded by an older bench-prep
        hashes = {name: digest for name, digest in hashes.items() if is_package_source(name)}
    found = {
        name: digest
        for name, digest in hashes.items()
        if not is_build_output(name) and digest != release.get(name)
    }
    found |= {name: DELETED for name in release if name not in hashes and not is_build_output(name)}
    return Difference(dict(sorted(found.items())))


def _digest(path: Path) -> str:
    try:
        return file_sha256(path)
    except IsADirectoryError:
        return "a folder"  # a submodule at another commit
    except OSError:
        return DELETED

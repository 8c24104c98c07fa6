"""What a worktree is besides its commit or release: the files that differ, and one hash of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.provenance.official import release_hashes
from bench_prep.provenance.worktree import Worktree, is_build_output, is_package_source

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
    """The uncommitted changes of a checkout, files not yet added among them; else what is not the
    version's release. None where neither a commit nor the release is known.
    """
    names = worktree.uncommitted()
    if names is not None:
        return Difference({name: _digest(worktree.root / name) for name in names})
    release = release_hashes(worktree.version)
    if release is None:
        return None
    hashes = {name: file_sha256(path) for name, path in worktree.sources().items()}
    return difference_from_release(hashes, release)


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

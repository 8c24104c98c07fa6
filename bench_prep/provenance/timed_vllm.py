"""Stages `wheel` and `sources`: which vLLM is timed, and whether it is the worktree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench_prep.child.device import target_device
from bench_prep.errors import Missing, NotTheWorktree, UsageError
from bench_prep.provenance.build import BuiltWheel, build_wheel
from bench_prep.provenance.difference import compiled_changes, difference, is_compiled_source
from bench_prep.provenance.environments import environment_of
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.install import InstalledVllm, install_wheel, installed_vllm
from bench_prep.provenance.record import known_wheel
from bench_prep.provenance.verify import Verification, fingerprint, require_ok, verify
from bench_prep.provenance.worktree import Worktree, named_commit, open_worktree
from bench_prep.stages import Stages

_CHANGED_SHOWN = 4


@dataclass(frozen=True)
class Source:
    """Where the timed vLLM comes from.

    `worktree` None: the installed vLLM as it is, compared with nothing. `build` False: compare
    the installed vLLM with the worktree without building. `precompiled`: a wheel whose compiled
    parts are used. `against`: the baseline's worktree, where it is not the same vLLM.
    """

    worktree: Path | None = None
    precompiled: Path | None = None
    build: bool = True
    against: Path | None = None


def verified_vllm(
    source: Source, device: str, stages: Stages
) -> tuple[Verification, dict[str, Any]]:
    """Stages `wheel` and `sources`: the verified vLLM, and the provenance columns.

    Raises:
        NotTheWorktree: after a table of the differing files.
        Missing: no vLLM, or the build failed.
    """
    worktree = None if source.worktree is None else open_worktree(source.worktree)
    built = None
    if worktree is not None and source.build:
        built = build_and_install(worktree, source.precompiled, device, stages)
    installed = installed_vllm()
    if installed is None:
        raise Missing(
            "vLLM is not installed in this environment",
            "run scripts/run_bench.sh, or give --worktree to build and install one",
        )
    if worktree is None:
        stages.passed("wheel", f"none built: vLLM {installed.version} is timed as installed")
    elif built is None:
        stages.passed("wheel", f"none built (--no-build): vLLM {installed.version} as installed")
    verification = check_sources(worktree, installed, stages, whole=True)
    columns = _of_worktree(worktree) if worktree else _of_installed(installed)
    if worktree and not built:
        _remark(require_compiled(worktree, source.precompiled), stages)
        known = known_wheel(installed.wheel_sha256)
        if known is None or known.tree_hash != columns["tree_sha256"]:
            columns["tree_sha256"] = None  # for all we know it was built from another tree
    return verification, columns | {
        "compared": worktree is not None,
        "wheel_sha256": built.sha256 if built else installed.wheel_sha256,
        "key_sources_sha256": verification.key_sources_sha256,
    } | ({"tree_sha256": built.tree_hash} if built else {})


def verified_worktrees(
    source: Source, device: str, stages: Stages
) -> tuple[Verification, Verification, dict[str, Any]]:
    """The same stages for `source.against` and `source.worktree`, each in its own environment.

    Returns the baseline's and the candidate's vLLM, and the provenance columns of both.

    Raises:
        UsageError: there is no worktree to compare, or nothing may be built.
        NotTheWorktree: after a table of the differing files.
        Missing: a build failed.
    """
    if source.worktree is None or source.against is None or not source.build:
        raise UsageError(
            "--against compares two worktrees, each with a wheel of its own",
            "give --worktree CANDIDATE --against BASELINE, without --no-build",
        )
    found = []
    trees = open_worktree(source.against), open_worktree(source.worktree)
    _require_same_compiled(*trees, source.precompiled)
    for path, worktree in zip((source.against, source.worktree), trees, strict=True):
        remark = require_compiled(worktree, source.precompiled)
        with stages.running("wheel") as update:
            built = build_wheel(worktree, source.precompiled, target_device(device), update)
            environment = environment_of(built, worktree, update)
        made = "unchanged, not rebuilt" if built.cached else f"built in {built.seconds:.0f} s"
        stages.passed(
            "wheel",
            f"{path}: {built.path.name} {made}, in an environment of its own; "
            f"SHA-256 {built.sha256[:12]}",
        )
        _remark(remark, stages)
        if environment.damage:
            stages.passed("", f"that environment was damaged, and made anew: {environment.damage}")
        verification = require_sources(environment.verification, stages)
        columns = _of_worktree(worktree) | {
            "tree_sha256": built.tree_hash,
            "wheel_sha256": built.sha256,
            "key_sources_sha256": verification.key_sources_sha256,
        }
        found.append((verification, columns))
    (baseline, of_baseline), (candidate, of_candidate) = found
    against = {f"against_{name.removeprefix('vllm_')}": v for name, v in of_baseline.items()}
    return baseline, candidate, of_candidate | against | {"compared": True}


def _of_worktree(worktree: Worktree) -> dict[str, Any]:
    differs = difference(worktree)
    return {
        "vllm_commit": worktree.commit,
        "worktree_dirty": bool(differs.files) if differs else None,
        "worktree_diff_sha256": differs.sha256 if differs else None,
        "tree_sha256": worktree.tree_hash(),
    }


def _of_installed(installed: InstalledVllm) -> dict[str, Any]:
    """What is known of a vLLM without its worktree: what its build here wrote down, if there was
    one, else the commit that a release names itself.
    """
    known = known_wheel(installed.wheel_sha256)
    return {
        "vllm_commit": (known and known.commit) or named_commit(installed.package_dir),
        "worktree_dirty": known.dirty if known else None,
        "worktree_diff_sha256": known.diff_sha256 if known else None,
        "tree_sha256": known.tree_hash if known else None,
    }


def build_and_install(
    worktree: Worktree, precompiled: Path | None, device: str, stages: Stages
) -> BuiltWheel:
    """Stage `wheel`: the worktree's wheel, built or reused, and installed."""
    remark = require_compiled(worktree, precompiled)
    with stages.running("wheel") as update:
        built = build_wheel(worktree, precompiled, target_device(device), update)
        fresh = install_wheel(built, update)
    made = "unchanged, not rebuilt" if built.cached else f"built in {built.seconds:.0f} s"
    placed = "installed" if fresh else "already installed"
    stages.passed("wheel", f"{built.path.name}: {made}, {placed}; SHA-256 {built.sha256[:12]}")
    _remark(remark, stages)
    return built


def _remark(text: str, stages: Stages) -> None:
    if text:
        stages.passed("", text)


def require_compiled(worktree: Worktree, precompiled: Path | None) -> str:
    """Refuse a worktree whose changes to compiled sources would not be what is timed.

    Returns a remark where there is no knowing; empty otherwise.

    Raises:
        NotTheWorktree: such sources are not those of the wheel with the compiled parts.
    """
    if precompiled is None:
        return ""
    changed, known = compiled_changes(worktree, precompiled)
    if changed:
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise NotTheWorktree(
            f"{changed[0]}{more} changed in the worktree, but the compiled parts would be those of "
            f"{precompiled}",
            "compile the worktree: leave --precompiled away; or undo the change, or give the wheel "
            "of these sources",
        )
    if known:
        return ""
    return f"not known: whether its C++, CUDA and Rust sources are those of {precompiled.name}"


def _require_same_compiled(
    baseline: Worktree, candidate: Worktree, precompiled: Path | None
) -> None:
    """Two worktrees with the compiled parts of one wheel must have the same compiled sources."""
    if precompiled is None:
        return
    one, other = (
        {n: file_sha256(path) for n, path in tree.sources().items() if is_compiled_source(n)}
        for tree in (baseline, candidate)
    )
    differing = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    if differing:
        raise NotTheWorktree(
            f"{differing[0]} differs between the worktrees, but both would have the compiled parts "
            f"of {precompiled}",
            "compile the worktrees: leave --precompiled away",
        )


def build_only(
    worktree: Worktree, precompiled: Path | None, device: str, install: bool, stages: Stages
) -> None:
    """`bench-prep build`: the wheel in the cache, and installed if asked for."""
    if install:
        build_and_install(worktree, precompiled, device, stages)
        return
    remark = require_compiled(worktree, precompiled)
    with stages.running("wheel") as update:
        built = build_wheel(worktree, precompiled, target_device(device), update)
    made = "unchanged, not rebuilt" if built.cached else f"built in {built.seconds:.0f} s"
    stages.passed("wheel", f"{built.path}: {made}; SHA-256 {built.sha256[:12]}")
    _remark(remark, stages)


def check_sources(
    worktree: Worktree | None, installed: InstalledVllm, stages: Stages, *, whole: bool
) -> Verification:
    """Stage `sources`: is the installed package the worktree? `whole`: compiled parts too.

    Raises:
        NotTheWorktree: after a table of the differing files.
    """
    if worktree is None:
        return require_sources(fingerprint(installed, whole=whole), stages)
    return require_sources(verify(worktree, installed, whole=whole), stages)


def require_sources(verification: Verification, stages: Stages) -> Verification:
    """The same for what has been compared already."""
    try:
        require_ok(verification)
    except NotTheWorktree:
        stages.console.print(differences_table(verification))
        raise
    stages.passed(
        "sources",
        f"identical to {verification.compared_with}: {len(verification.key_sources)} key sources "
        f"of {len(verification.files)} files; SHA-256 {verification.key_sources_sha256[:12]}",
    )
    for what in verification.not_compared:
        stages.passed("", f"not compared: {what}")
    changed = verification.changed
    if changed:
        shown = ", ".join(changed[:_CHANGED_SHOWN]) + (", ..." if changed[_CHANGED_SHOWN:] else "")
        stages.passed("", f"not those of the release {verification.version}: {shown}")
    return verification


def differences_table(verification: Verification) -> Table:
    """The files that are not as they should be, with the beginnings of their hashes."""
    title = "not what was installed" if verification.worktree is None else "not the worktree"
    table = Table(title=title, title_justify="left")
    for column in ("file", "problem", "worktree", "installed", "RECORD"):
        table.add_column(column, overflow="fold")

    def short(digest: str | None) -> str:
        return digest[:12] if digest else "-"

    for file in verification.wrong:
        table.add_row(
            file.path,
            file.problem,
            short(file.worktree_sha256),
            short(file.installed_sha256),
            short(file.record_sha256),
        )
    return table

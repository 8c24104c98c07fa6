"""`bench-prep verify-install`: is the installed vLLM this worktree, or the one of a result row?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep.errors import Missing, NotTheWorktree
from bench_prep.provenance.environments import environment_named
from bench_prep.provenance.install import InstalledVllm, installed_vllm
from bench_prep.provenance.verify import Verification, fingerprint, require_ok, verify
from bench_prep.provenance.worktree import Worktree, open_worktree
from bench_prep.recorded import Recorded, read_recorded
from bench_prep.source import check_sources
from bench_prep.stages import Stages


def verify_install(
    worktree: Path | None,
    result: Path | None,
    run_id: str | None,
    *,
    whole: bool,
    as_json: bool,
    console: Console,
) -> None:
    """Compare the installed vLLM with a worktree, and with the run of a result file.

    `whole`: the content of compiled parts and data too, not only their size.

    Raises:
        NotTheWorktree: it is another; what differs has been shown, as a table or as JSON.
        Missing: no vLLM is installed.
        UsageError: the worktree or the result file cannot be used.
    """
    recorded = None if result is None else read_recorded(result, run_id)
    tree = None if worktree is None else open_worktree(worktree)
    if recorded is not None and recorded.against:
        installed = _environment(recorded, recorded.proof)
    else:
        installed = _installed()
    if as_json:
        if tree is None:
            verification = fingerprint(installed, whole=whole)
        else:
            verification = verify(tree, installed, whole=whole)
        then = _differences(recorded, installed, verification)
        console.print_json(json.dumps(as_record(tree, installed, verification, recorded, then)))
        require_ok(verification)
    else:
        stages = Stages(console)
        verification = check_sources(tree, installed, stages, whole=whole)
        then = _differences(recorded, installed, verification)
        if recorded is not None and not then:
            stages.passed("result", f"the vLLM of run {recorded.run} in {recorded.path}")
    if recorded is not None and then:
        raise NotTheWorktree(
            f"the installed vLLM is not the one of run {recorded.run} in {recorded.path}: "
            + "; ".join(f"{name} was {was}, is {now}" for name, was, now in then),
            "install the wheel that the run was made with, or measure again",
        )


def as_record(
    worktree: Worktree | None,
    installed: InstalledVllm,
    verification: Verification,
    recorded: Recorded | None,
    then: list[tuple[str, str, str]],
) -> dict[str, Any]:
    """What `--json` prints; the README describes the keys."""
    return {
        "ok": verification.ok and not then,
        "compared_with": [
            *([] if worktree is None else ["worktree"]),
            "RECORD",
            *(["wheel"] if verification.wheel_known else []),
            *([] if recorded is None else ["result"]),
        ],
        "worktree": None if worktree is None else str(worktree.root),
        "package_dir": str(installed.package_dir),
        "distribution": installed.name,
        "vllm_version": installed.version,
        "wheel_sha256": installed.wheel_sha256,
        "key_sources_sha256": verification.key_sources_sha256,
        "key_sources": {check.path: check.installed_sha256 for check in verification.key_sources},
        "files": len(verification.files),
        "changed_from_release": verification.changed,
        "problems": verification.problems,
        "wrong": [
            {
                "path": check.path,
                "problem": check.problem,
                "worktree_sha256": check.worktree_sha256,
                "installed_sha256": check.installed_sha256,
                "record_sha256": check.record_sha256,
            }
            for check in verification.wrong
        ],
        "result": None
        if recorded is None
        else {
            "file": str(recorded.path),
            "run": recorded.run,
            "differs": {name: {"was": was, "is": now} for name, was, now in then},
        },
    }


def _installed() -> InstalledVllm:
    installed = installed_vllm()
    if installed is None:
        raise Missing("vLLM is not installed in this environment", "install it: bench-prep build")
    return installed


def _environment(recorded: Recorded, proof: dict[str, str]) -> InstalledVllm:
    """Of a run that compared two worktrees: the environment of one of them."""
    found = environment_named(proof["wheel_sha256"])
    if found is None:
        raise Missing(
            f"the environment of wheel {proof['wheel_sha256'][:12]}, in which run {recorded.run} "
            "was made, is no longer in the cache",
            "measure again with --against",
        )
    return found


def _differences(
    recorded: Recorded | None, installed: InstalledVllm, verification: Verification
) -> list[tuple[str, str, str]]:
    """Column, the run's value, the value now; for what the run recorded."""
    if recorded is None:
        return []
    differs = _since(recorded.proof, installed, verification)
    if recorded.against:
        baseline = _environment(recorded, recorded.against)
        found = fingerprint(baseline)
        require_ok(found)
        differs += [
            (f"against_{name}", was, now)
            for name, was, now in _since(recorded.against, baseline, found)
        ]
    return differs


def _since(
    proof: dict[str, str], installed: InstalledVllm, verification: Verification
) -> list[tuple[str, str, str]]:
    now = {
        "vllm_version": installed.version,
        "wheel_sha256": installed.wheel_sha256 or "unknown",
        "key_sources_sha256": verification.key_sources_sha256,
    }
    differs = [
        (name, was, now[name])
        for name, was in proof.items()
        if was and _comparable(name, was) != _comparable(name, now[name])
    ]
    names = [name for name, _, _ in differs]
    if names == ["key_sources_sha256"] and proof["wheel_sha256"] and verification.ok:
        # The same wheel, unharmed: only the list of key sources grew or shrank, with what is known
        # of the release.
        return []
    return differs


def _comparable(name: str, value: str) -> str:
    # A build's metadata can name its device where `vllm.__version__` does not.
    return value.partition("+")[0] if name == "vllm_version" else value

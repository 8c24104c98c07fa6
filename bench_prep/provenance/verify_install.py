"""`bench-prep verify-install`: is the installed vLLM this worktree, or the one of a result row?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep.errors import BenchPrepError, Missing, NotTheWorktree
from bench_prep.provenance.environments import environment_named
from bench_prep.provenance.install import InstalledVllm, installed_vllm
from bench_prep.provenance.record import known_wheel
from bench_prep.provenance.timed_vllm import check_sources, require_sources
from bench_prep.provenance.verify import INSTALL, Verification, fingerprint, require_ok, verify
from bench_prep.provenance.worktree import Worktree, open_worktree
from bench_prep.results.recorded import Recorded, read_recorded
from bench_prep.stages import Stages

_NO_WHEEL = "the run's wheel, because its row names none"
#: Column, the run's value, the value now.
Differences = list[tuple[str, str, str]]


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
    if as_json:
        then = _as_json(tree, recorded, whole, console)
    else:
        stages = Stages(console)
        installed = _installed(recorded)
        verification = check_sources(tree, installed, stages, whole=whole)
        baseline = _baseline(recorded, whole=whole)
        if baseline is not None:
            require_sources(baseline[1], stages)
        then = _differences(recorded, installed, verification, baseline)
        if recorded is not None and not then:
            stages.passed("result", f"the vLLM of run {recorded.run} in {recorded.path}")
            if not recorded.proof["wheel_sha256"]:
                stages.passed("", f"not compared: {_NO_WHEEL}")
    if recorded is not None and then:
        raise NotTheWorktree(
            f"the installed vLLM is not the one of run {recorded.run} in {recorded.path}: "
            + "; ".join(f"{name} was {was}, is {now}" for name, was, now in then),
            "install the wheel that the run was made with, or measure again",
        )


def _as_json(
    worktree: Worktree | None, recorded: Recorded | None, whole: bool, console: Console
) -> Differences:
    """Print the answer, also where it is an error, which is raised then."""
    answer = _NOTHING_FOUND | {
        "worktree": None if worktree is None else str(worktree.root),
        "result": None
        if recorded is None
        else {"file": str(recorded.path), "run": recorded.run, "differs": {}},
    }
    try:
        installed = _installed(recorded)
        if worktree is None:
            verification = fingerprint(installed, whole=whole)
        else:
            verification = verify(worktree, installed, whole=whole)
        answer |= as_record(worktree, installed, verification)
        baseline = _baseline(recorded, whole=whole)
        then = _differences(recorded, installed, verification, baseline)
    except BenchPrepError as error:
        answer |= {"ok": False, "problems": [*answer["problems"], error.message]}
        console.print_json(json.dumps(answer), highlight=False)
        raise
    if baseline is not None and not baseline[1].ok:
        answer["problems"].append(f"the baseline's environment: {baseline[1].summary}")
        answer["wrong"] += _wrong(baseline[1])
        answer["ok"] = False
    if recorded is not None:
        answer["compared_with"].append("result")
        if not recorded.proof["wheel_sha256"]:
            answer["not_compared"].append(_NO_WHEEL)
        answer["result"]["differs"] = {name: {"was": was, "is": now} for name, was, now in then}
        answer["ok"] = answer["ok"] and not then
    console.print_json(json.dumps(answer), highlight=False)
    require_ok(verification)
    if baseline is not None:
        require_ok(baseline[1])
    return then


#: The answer where there is no vLLM to be compared.
_NOTHING_FOUND: dict[str, Any] = {
    "ok": False,
    "compared_with": [],
    "not_compared": [],
    "worktree": None,
    "package_dir": None,
    "distribution": None,
    "vllm_version": None,
    "wheel_sha256": None,
    "key_sources_sha256": None,
    "key_sources": {},
    "files": 0,
    "changed_from_release": None,
    "problems": [],
    "wrong": [],
    "result": None,
}


def as_record(
    worktree: Worktree | None, installed: InstalledVllm, verification: Verification
) -> dict[str, Any]:
    """What `--json` prints of an installation; docs/provenance.md describes the keys."""
    return {
        "ok": verification.ok,
        "compared_with": [
            *([] if worktree is None else ["worktree"]),
            "RECORD",
            *(["wheel"] if verification.wheel_known else []),
        ],
        "not_compared": [*verification.not_compared],
        "package_dir": str(installed.package_dir),
        "distribution": installed.name,
        "vllm_version": installed.version,
        "wheel_sha256": installed.wheel_sha256,
        "key_sources_sha256": verification.key_sources_sha256,
        "key_sources": {check.path: check.installed_sha256 for check in verification.key_sources},
        "files": len(verification.files),
        "changed_from_release": verification.changed,
        "problems": verification.problems,
        "wrong": _wrong(verification),
    }


def _wrong(verification: Verification) -> list[dict[str, str | None]]:
    return [
        {
            "path": check.path,
            "problem": check.problem,
            "worktree_sha256": check.worktree_sha256,
            "installed_sha256": check.installed_sha256,
            "record_sha256": check.record_sha256,
        }
        for check in verification.wrong
    ]


def _installed(recorded: Recorded | None) -> InstalledVllm:
    """The installed vLLM; of a run that compared two worktrees, the candidate's environment."""
    if recorded is not None and recorded.against:
        return _environment(recorded, recorded.proof)
    installed = installed_vllm()
    if installed is None:
        raise Missing(
            "vLLM is not installed in this environment",
            f"install it: {INSTALL}",
        )
    return installed


def _environment(recorded: Recorded, proof: dict[str, str]) -> InstalledVllm:
    """The environment of one of the two worktrees that a run compared."""
    found = environment_named(proof["wheel_sha256"])
    if found is None:
        raise Missing(
            f"the environment of wheel {proof['wheel_sha256'][:12]}, in which run {recorded.run} "
            "was made, is no longer in the cache",
            "measure again with --against",
        )
    return found


def _baseline(
    recorded: Recorded | None, *, whole: bool
) -> tuple[InstalledVllm, Verification] | None:
    """The baseline's environment of a run that compared two worktrees.

    Raises:
        Missing: it is gone.
    """
    if recorded is None or not recorded.against:
        return None
    installed = _environment(recorded, recorded.against)
    return installed, fingerprint(installed, whole=whole)


def _differences(
    recorded: Recorded | None,
    installed: InstalledVllm,
    verification: Verification,
    baseline: tuple[InstalledVllm, Verification] | None,
) -> Differences:
    """In what the run recorded another vLLM."""
    if recorded is None:
        return []
    differs = _since(recorded.proof, installed, verification)
    if baseline is not None:
        differs += [
            (f"against_{name}", was, now) for name, was, now in _since(recorded.against, *baseline)
        ]
    return differs


def _since(
    proof: dict[str, str], installed: InstalledVllm, verification: Verification
) -> Differences:
    known = known_wheel(installed.wheel_sha256)
    now = {
        "vllm_version": installed.version,
        "wheel_sha256": installed.wheel_sha256 or "unknown",
        "key_sources_sha256": verification.key_sources_sha256,
    }
    if known is not None:
        now["tree_sha256"] = known.tree_hash
        if known.commit:
            now["vllm_commit"] = known.commit
    differs = [
        (name, was, now[name])
        for name, was in proof.items()
        if was and name in now and _comparable(name, was) != _comparable(name, now[name])
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

"""Which vLLM a run of a result file was measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench_prep.errors import UsageError
from bench_prep.results.raw import raw_table, read_bytes, torn_row

#: The columns that together name an installed vLLM, and its baseline's in a run with `--against`.
#: The first is `vllm.__version__`.
_PROOF = {
    "vllm_version": "",
    "wheel_sha256": "against_wheel_sha256",
    "key_sources_sha256": "against_key_sources_sha256",
    "tree_sha256": "against_tree_sha256",
    "vllm_commit": "against_commit",
}


@dataclass(frozen=True)
class Recorded:
    """One run's proof, by column; empty where the run could not know it.

    `against` is the baseline's, where it was another worktree; empty for a run with one vLLM.
    """

    path: Path
    run: str
    proof: dict[str, str]
    against: dict[str, str]


def read_recorded(path: Path, run_id: str | None) -> Recorded:
    """The run with this identifier, or the last one of the file.

    Raises:
        UsageError: no such file or run, or a file without the proof.
    """
    raw = raw_table(read_bytes(path), path)
    if raw.torn is not None:
        raise torn_row(path, raw.torn)
    rows = [dict(zip(raw.header, record, strict=True)) for record in raw.records]
    runs = [row for row in rows if row.get("run")]
    if not runs:
        raise UsageError(f"{path} has no run of bench-prep", "give a file that bench-prep wrote")
    wanted = runs[-1]["run"] if run_id is None else run_id
    found = [row for row in runs if row["run"] == wanted]
    if not found:
        known = ", ".join(dict.fromkeys(row["run"] for row in runs))
        raise UsageError(f"{path} has no run {wanted}", f"its runs: {known}")

    def cell(name: str) -> str:
        return (found[-1].get(name) or "").strip()

    proof = {name: cell(name) for name in _PROOF}
    against = {name: cell(other) for name, other in _PROOF.items() if other}
    if cell("compared").lower() != "false":
        # A wheel is reused where only the commit changed, not the tree.
        proof["vllm_commit"] = against["vllm_commit"] = ""
    if not proof["key_sources_sha256"]:
        raise UsageError(
            f"run {wanted} in {path} does not say what it was measured on",
            "give a run that bench-prep run finished",
        )
    wheelless = (proof["tree_sha256"] and not proof["wheel_sha256"]) or (
        any(against.values()) and not against["wheel_sha256"]
    )
    if wheelless:
        raise UsageError(
            f"run {wanted} in {path} names a tree but not the wheel that was built from it",
            "give the file as it was written",
        )
    return Recorded(path, wanted, proof, against if against["wheel_sha256"] else {})

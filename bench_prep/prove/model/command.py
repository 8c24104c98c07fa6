"""`prove model`: is the fast path exact on a whole engine of this model?

Three things make equal outputs a proof: vLLM repeats its own outputs, the outputs vary, and one
wrong KV slot changes them.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.child.device import require_device
from bench_prep.child.launch import temporary_folder
from bench_prep.decode.bring_up import fastpath_sha256
from bench_prep.engine.vllm.names import GREEDY, GREEDY_AGAIN
from bench_prep.engine.vllm.shapes import write_model
from bench_prep.engine.vllm.tokenizer import write_tokenizer
from bench_prep.errors import Inconclusive, Missing, OutputsDiffer, UsageError
from bench_prep.fastpath.fingerprint import KNOWN_FILE, known
from bench_prep.files import check_replaceable, write_json
from bench_prep.prove.model.compare import first_changed_step, first_difference, request_difference
from bench_prep.prove.model.events import Fault
from bench_prep.prove.model.run import EngineRun, run_engine
from bench_prep.provenance.cachedir import new_log
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.timed_vllm import Source, verified_vllm
from bench_prep.stages import Stages

#: Of the greedy request's 200 tokens so many must be distinct.
LEAST_DISTINCT = 50


@dataclass(frozen=True)
class Proof:
    """What was shown for one model.

    Attributes:
        architectures: as in the model's configuration.
        config_sha256: of that file.
        groups: the KV groups, as in `ProbedWorker.engine_facts`.
        tokens: output tokens that were compared, each with its log-probabilities.
        distinct: distinct tokens of the greedy request's 200.
        dispatched: steps by the fast path in each phase.
        fallbacks: steps by vLLM's own path, by reason.
        wrong_slots: for each KV group with slots, what one wrong slot changed first, and the
            first token that it changed (None: log-probabilities alone).
        own_differ: how vLLM's own first process, which may have compiled and tuned its kernels,
            differed from a third one, with which the fast path's was compared; "": it did not.
    """

    architectures: list[str]
    config_sha256: str
    vllm: str
    runner: str
    device: str
    dtype: str
    mrope: bool
    groups: list[dict[str, Any]]
    tokens: int
    distinct: int
    dispatched: dict[str, int]
    fallbacks: dict[str, int]
    wrong_slots: list[dict[str, Any]]
    own_differ: str = ""


def run_prove_model(
    model: str, device: str, *, add: bool, output: Path | None, command: str, console: Console
) -> None:
    """Prove the model, write the proof into the JSON list `output`, list its architecture.

    Raises:
        BenchPrepError: as `prove_model`; then nothing is written.
    """
    for path in (output, KNOWN_FILE if add else None):
        if path is not None:
            check_replaceable(path)
    require_device(device)
    stages = Stages(console)
    with temporary_folder() as folder:
        write_model(model, folder)
        _, provenance = verified_vllm(Source(), device, stages)
        about = {
            "bench_prep_version": __version__,
            "command": command,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "fastpath_sha256": fastpath_sha256(),
            **provenance,
        }
        proof = prove_model(folder, device, stages)
    listed = set(proof.architectures) <= set(known()["architectures"])
    stages.passed(
        "proven",
        f"{', '.join(proof.architectures)}; "
        + ("listed" if listed else "not listed yet" + (": give --add" if not add else "")),
    )
    if output is not None:
        write_proof(proof, about, output)
        stages.passed("written", str(output))
    if add:
        new = add_architectures(proof.architectures, KNOWN_FILE)
        stages.passed("listed", f"{', '.join(new) or 'nothing new'} in {KNOWN_FILE}")


def prove_model(folder: Path, device: str, stages: Stages) -> Proof:
    """Run the requests without the fast path, twice, and with it, and compare.

    Where they differ a third process runs them without it: vLLM's first process of a model can
    compile and tune other kernels than later ones load, and the last bits of their sums differ.

    `folder` holds a model's `config.json` (`shapes.write_model`); a tokenizer is written there.

    Raises:
        OutputsDiffer: with the first difference.
        Inconclusive: equal outputs would prove nothing here.
        Missing: the fast path does not serve this model.
    """
    write_tokenizer(folder)
    run_id = uuid.uuid4().hex[:12]

    def engine(stage: str, **options: Any) -> EngineRun:
        with stages.running(stage) as update:
            log = new_log(f"prove-model-{run_id}-{stage}.log")
            return run_engine(folder, device, log, update=update, **options)

    own = engine("without", fastpath=False, passes=2)
    stages.passed("without", _engine_line(own))
    fast = engine("with", fastpath=True, plant=True)
    config_sha256 = file_sha256(folder / "config.json")
    try:
        proof = judge(own, fast, config_sha256)
    except OutputsDiffer:
        again = engine("again", fastpath=False, passes=2)
        proof = judge_third(own, again, fast, config_sha256)
        stages.passed("again", f"vLLM's own first process differs from this: {proof.own_differ}")
    steps = sum(proof.dispatched.values())
    stages.passed("with", f"{steps} steps by the fast path; {_others(proof.fallbacks)}")
    phases = len(proof.dispatched)
    stages.passed("equal", f"{proof.tokens} tokens of {phases} phases and their log-probabilities")
    stages.passed("varied", f"{proof.distinct} distinct tokens of 200")
    for fault in proof.wrong_slots:
        other = fault["token_changed"]
        tokens = "no token" if other is None else f"tokens from the {other}th on"
        stages.passed(
            "control",
            f"a wrong slot of KV group {fault['group']}, position {fault['position']}, changes "
            f"log-probabilities and {tokens}",
        )
    return proof


def judge(own: EngineRun, fast: EngineRun, config_sha256: str) -> Proof:
    """The proof that the two runs are; raises as `prove_model` does."""
    if any(own.counts.values()):
        raise Inconclusive("the fast path was attached to the engine that should be without it")
    if difference := first_difference(*own.passes):
        raise Inconclusive(f"vLLM's own outputs do not repeat: {difference}")
    greedy = own.outputs[GREEDY][0]
    distinct = len(set(greedy["tokens"]))
    if distinct < LEAST_DISTINCT:
        raise Inconclusive(f"only {distinct} of {len(greedy['tokens'])} greedy tokens are distinct")
    if None in fast.counts.values():
        raise Missing(f"the fast path does not serve this model ({fast.not_used or 'no plugin'})")
    if own.facts != fast.facts:
        raise Inconclusive(f"not the same engine twice: {own.facts} and {fast.facts}")
    if difference := first_difference(own.outputs, fast.outputs):
        raise OutputsDiffer(f"outputs differ: {difference}")
    if not fast.faults:
        raise Inconclusive("no KV group has slots: this model cannot show a wrong one")
    dispatched = fast.dispatched
    if not dispatched[GREEDY]:
        raise Inconclusive(f"no step of the greedy request by the fast path: {fast.fallbacks}")
    return Proof(
        architectures=own.facts["architectures"],
        config_sha256=config_sha256,
        vllm=own.vllm,
        runner=own.facts["runner"],
        device=own.facts["device"],
        dtype=own.facts["dtype"],
        mrope=own.facts["mrope"],
        groups=own.facts["groups"],
        tokens=sum(len(one["tokens"]) for some in own.outputs.values() for one in some),
        distinct=distinct,
        dispatched=dispatched,
        fallbacks=fast.fallbacks,
        wrong_slots=[_control(own.outputs[GREEDY_AGAIN][0], fault) for fault in fast.faults],
    )


def judge_third(own: EngineRun, again: EngineRun, fast: EngineRun, config_sha256: str) -> Proof:
    """The proof by a third process, `again`, after `own` and `fast` differed.

    Raises:
        OutputsDiffer: vLLM's own two processes are equal, so the fast path's is not.
        Inconclusive: all three differ.
    """
    difference = first_difference(own.outputs, again.outputs)
    try:
        return replace(judge(again, fast, config_sha256), own_differ=difference or "")
    except OutputsDiffer:
        if difference is None:
            raise
        raise Inconclusive(f"vLLM's own outputs change by process: {difference}") from None


def _control(right: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """What the wrong slot of one KV group changed.

    Raises:
        Inconclusive: nothing, or not only what comes after it.
    """
    name = f"a wrong slot of KV group {fault.group}"
    if fault.position is None:
        raise Inconclusive(f"{name} could not be planted: no block boundary was crossed")
    (found,) = fault.requests
    changed = first_changed_step(right, found)
    if changed is None:
        raise Inconclusive(f"{name} at position {fault.position} changes nothing")
    if changed <= fault.position - right["prompt_tokens"]:  # sampled before that step
        raise Inconclusive(f"{name} at position {fault.position} is not all that changed")
    pairs = zip(right["tokens"], found["tokens"], strict=True)
    return {
        "group": fault.group,
        "position": fault.position,
        "changes": request_difference(right, found),
        "token_changed": next((index for index, (a, b) in enumerate(pairs) if a != b), None),
    }


def _engine_line(run: EngineRun) -> str:
    facts = run.facts
    groups = ", ".join(f"{g['kind']} of {g['block_size']}" for g in facts["groups"])
    mrope = ", M-RoPE" if facts["mrope"] else ""
    return (
        f"{', '.join(facts['architectures'])} on vLLM {run.vllm}, {facts['device']}, "
        f"{facts['dtype']}{mrope}; KV groups: {groups}; outputs repeat"
    )


def _others(fallbacks: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in fallbacks.items())


def write_proof(proof: Proof, about: dict[str, Any], output: Path) -> None:
    """Put the proof into a JSON list, in place of one of the same model and vLLM.

    Raises:
        UsageError: the file is not such a list, or cannot be written.
    """
    made = {"proof": "model", **about, **asdict(proof)}
    key = ("architectures", "config_sha256", "vllm", "device")
    try:
        proofs = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
        others = [old for old in proofs if any(old[name] != made[name] for name in key)]
        if not isinstance(proofs, list):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{output} is no list of proofs of models", "give another file") from None
    write_json(output, [*others, made])


def add_architectures(names: list[str], known: Path) -> list[str]:
    """List architectures as proven in `known.json`; returns those that were not listed yet."""
    data = json.loads(known.read_text(encoding="utf-8"))
    new = [name for name in names if name not in data["architectures"]]
    if new:
        data["architectures"].extend(new)
        write_json(known, data)
    return new

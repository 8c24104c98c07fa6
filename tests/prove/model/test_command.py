"""Two engine runs are a proof only when everything that makes them one holds."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench_prep.cli.app import app
from bench_prep.engine.vllm.names import GREEDY, GREEDY_AGAIN
from bench_prep.engine.vllm.shapes import TINY_MODELS, write_model
from bench_prep.errors import BenchPrepError, Inconclusive, Missing, OutputsDiffer, UsageError
from bench_prep.prove.model import command as prove
from bench_prep.prove.model.command import Proof, add_architectures, judge, judge_third, write_proof
from bench_prep.prove.model.events import Fault
from bench_prep.prove.model.run import EngineRun
from bench_prep.stages import Stages

FACTS = {
    "architectures": ["Qwen2ForCausalLM"],
    "runner": "runner",
    "device": "cpu",
    "dtype": "torch.float32",
    "mrope": False,
    "groups": [{"kind": "FullAttentionSpec", "block_size": 32, "slots": True}],
}


def output(tokens: list[int], logprob: float = -1.0) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "logprobs": [[[token, logprob.hex(), 1]] for token in tokens],
        "prompt_logprobs": [],
        "prompt_tokens": 76,
        "cached": 0,
        "finish": ["length", None],
    }


def runs() -> tuple[EngineRun, EngineRun]:
    outputs = {
        GREEDY: [output(list(range(200)))],
        GREEDY_AGAIN: [output(list(range(200))) | {"cached": 64}],
        "sampled": [output([1, 2])],
    }
    own = EngineRun("0.32.0", FACTS, [outputs, copy.deepcopy(outputs)])
    own.counts = dict.fromkeys(outputs)
    fast = EngineRun("0.32.0", copy.deepcopy(FACTS), [copy.deepcopy(outputs)])
    fast.counts = {
        GREEDY: {"dispatched": 199, "fallbacks": {"several tokens": 1}},
        GREEDY_AGAIN: {"dispatched": 398, "fallbacks": {"several tokens": 2}},
        "sampled": {"dispatched": 399, "fallbacks": {"several tokens": 3}},
    }
    wrong = [output([*range(21), *range(500, 679)]) | {"cached": 64}]
    fast.faults = [Fault(0, 96, wrong)]
    return own, fast


def test_a_proof() -> None:
    proof = judge(*runs(), "hash")
    assert (proof.tokens, proof.distinct) == (402, 200)
    assert proof.dispatched == {GREEDY: 199, GREEDY_AGAIN: 199, "sampled": 1}
    assert proof.fallbacks == {"several tokens": 3}
    (control,) = proof.wrong_slots
    assert control["changes"].startswith("token 21: expected 21 ")
    assert control["token_changed"] == 21


def one_token(own: EngineRun, fast: EngineRun) -> None:
    for outputs in (*own.passes, *fast.passes):
        outputs[GREEDY] = [output([5] * 200)]


def too_early(own: EngineRun, fast: EngineRun) -> None:
    fast.faults[0].requests[:] = [output([*range(20), *range(500, 680)]) | {"cached": 64}]


def no_boundary(own: EngineRun, fast: EngineRun) -> None:
    fast.faults = [replace(fast.faults[0], position=None)]


def unnoticed(own: EngineRun, fast: EngineRun) -> None:
    fast.faults[0].requests[:] = [output(list(range(200))) | {"cached": 64}]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda a, b: a.counts.update(b.counts), Inconclusive, "should be without it"),
        (lambda a, b: a.passes[1]["sampled"].pop(), Inconclusive, "do not repeat: sampled"),
        (one_token, Inconclusive, "only 1 of 200"),
        (lambda a, b: b.counts.update(sampled=None), Missing, "unlisted"),
        (lambda a, b: b.facts.update(mrope=True), Inconclusive, "not the same engine"),
        (lambda a, b: b.passes[0].update(sampled=[output([1, 3])]), OutputsDiffer, "token 1"),
        (lambda a, b: b.passes[0].update(sampled=[output([1, 2], -2.0)]), OutputsDiffer, "-2.0"),
        (lambda a, b: b.counts[GREEDY].update(dispatched=0), Inconclusive, "no step of the greedy"),
        (
            lambda a, b: setattr(b, "faults", [replace(b.faults[0], position=None)]),
            Inconclusive,
            "no block boundary",
        ),
        (too_early, Inconclusive, "is not all that changed"),
        (unnoticed, Inconclusive, "group 0 at position 96 changes nothing"),
        (lambda a, b: b.faults.clear(), Inconclusive, "no KV group"),
    ],
)
def test_no_proof(
    change: Callable[[EngineRun, EngineRun], Any], error: type[BenchPrepError], says: str
) -> None:
    own, fast = runs()
    fast.not_used = "unlisted architecture"
    change(own, fast)
    with pytest.raises(error, match=says):
        judge(own, fast, "hash")


def test_a_third_process_decides_where_two_differ() -> None:
    """As the first process of a model on a device, which tunes its kernels."""
    own, fast = runs()
    again = copy.deepcopy(own)
    assert judge_third(own, again, fast, "hash").own_differ == ""
    for outputs in own.passes:
        outputs["sampled"] = [output([1, 2], -1.5)]
    with pytest.raises(OutputsDiffer):
        judge(own, fast, "hash")
    proof = judge_third(own, again, fast, "hash")
    assert proof.own_differ.startswith("sampled, token 0: expected 1 (1: -1.5")
    assert proof.tokens == 402
    fast.passes[0]["sampled"] = [output([1, 3])]
    with pytest.raises(Inconclusive, match="own outputs change by process: sampled"):
        judge_third(own, again, fast, "hash")
    with pytest.raises(OutputsDiffer, match="token 1"):
        judge_third(again, again, fast, "hash")


def test_a_newer_proof_takes_the_place_of_the_same_model_s(tmp_path: Path) -> None:
    proof = judge(*runs(), "hash")
    other = Proof(**{**vars(proof), "config_sha256": "another"})
    file = tmp_path / "proofs.json"
    for made, command in ((proof, "first"), (other, "second"), (proof, "third")):
        write_proof(made, {"command": command}, file)
    assert [entry["command"] for entry in json.loads(file.read_text())] == ["second", "third"]
    assert [path.name for path in tmp_path.iterdir()] == ["proofs.json"]


@pytest.mark.parametrize("content", ["{}", "no JSON", "[1]", '[{"proof": "source"}]'])
def test_a_file_that_is_no_list_of_proofs_is_left_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(UsageError, match="no list of proofs"):
        write_proof(judge(*runs(), "hash"), {}, file)
    assert file.read_text() == content


def test_architectures_are_added_once(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    before = {"devices": ["cpu"], "architectures": ["A"], "sources": {"f": {"vllm": "1"}}}
    known.write_text(json.dumps(before, indent=2) + "\n")
    assert add_architectures(["A", "B"], known) == ["B"]
    assert json.loads(known.read_text()) == before | {"architectures": ["A", "B"]}
    assert add_architectures(["B"], known) == []


def test_models(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    (folder / "model.safetensors").write_bytes(b"weights")
    for number, model in enumerate((folder, folder / "config.json")):
        target = tmp_path / str(number)
        target.mkdir()
        write_model(str(model), target)
        assert [path.name for path in target.iterdir()] == ["config.json"]
        assert json.loads((target / "config.json").read_text()) == {"architectures": ["X"]}
    for name, config in TINY_MODELS.items():
        assert config["architectures"] == [name]
    with pytest.raises(UsageError, match="no architecture with a tiny model"):
        write_model("NoSuchModel", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["NoSuchModel"], "NoSuchModel is no model folder, no config.json"),
        (["Qwen2ForCausalLM", "--output", "no/such/folder.json"], "cannot be written"),
        (["Qwen2ForCausalLM", "--output", "."], "not an ordinary file"),
    ],
)
def test_refused_before_any_engine_starts(arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        app(["prove", "model", *arguments], standalone_mode=False)


def test_a_difference_is_one_only_if_vllm_repeats_its_outputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BENCH_PREP_CACHE", str(tmp_path / "cache"))
    own, fast = runs()
    fast.passes[0]["sampled"] = [output([1, 3])]
    unsteady = copy.deepcopy(own)
    unsteady.passes[0]["sampled"] = [output([1, 4])]

    for third, error in ((own, OutputsDiffer), (unsteady, Inconclusive)):
        engines = iter([own, fast, third])
        monkeypatch.setattr(prove, "run_engine", lambda *a, e=engines, **options: next(e))
        folder = tmp_path / error.__name__
        folder.mkdir()
        with pytest.raises(error):
            prove.prove_model(
                write_model("Qwen2ForCausalLM", folder), "cpu", Stages(Console(quiet=True))
            )
        assert next(engines, None) is None

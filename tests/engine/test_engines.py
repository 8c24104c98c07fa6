"""On whole engines: same tokens, same log-probabilities, with the fast path and without it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from bench_prep.engine.vllm.shapes import write_model
from bench_prep.prove.model.command import LEAST_DISTINCT, Proof, prove_model
from bench_prep.stages import Stages

ARCHITECTURES = [
    pytest.param("Qwen2ForCausalLM", marks=[pytest.mark.vllm, pytest.mark.slow]),
    pytest.param("Gemma3ForCausalLM", marks=pytest.mark.vllm),
    pytest.param("Qwen3_5ForConditionalGeneration", marks=pytest.mark.gpu),
]
#: Of each KV group: its kind, and whether a wrong slot can be planted in it.
GROUPS = {
    "Qwen2ForCausalLM": {("FullAttentionSpec", True)},
    "Gemma3ForCausalLM": {("SlidingWindowSpec", True), ("FullAttentionSpec", True)},
    "Qwen3_5ForConditionalGeneration": {("MambaSpec", False), ("FullAttentionSpec", True)},
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def proved(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Proof]:
    """An architecture and its proof: two engines, about half a minute on two cores."""
    folder = write_model(request.param, tmp_path_factory.mktemp("model"))
    return request.param, prove_model(folder, "auto", Stages(Console(quiet=True)))


def test_equal_on_every_kind_of_request(proved: tuple[str, Proof]) -> None:
    """`prove_model` raises at the first difference, so this says what was compared."""
    architecture, proof = proved
    assert proof.architectures == [architecture]
    assert {(group["kind"], group["slots"]) for group in proof.groups} == GROUPS[architecture]
    assert proof.mrope == (architecture == "Qwen3_5ForConditionalGeneration")
    assert len(proof.dispatched) == 14
    assert proof.tokens > 900
    assert all(steps > 0 for steps in proof.dispatched.values())
    assert sum(proof.dispatched.values()) > 0.7 * proof.tokens
    assert {"several tokens", "several requests"} <= set(proof.fallbacks)


def test_outputs_vary(proved: tuple[str, Proof]) -> None:
    assert proved[1].distinct >= LEAST_DISTINCT


def test_one_wrong_slot_changes_the_outputs(proved: tuple[str, Proof]) -> None:
    """In each KV group with slots, soon after the boundary at which it was planted."""
    proof = proved[1]
    planted = [group["slots"] for group in proof.groups].count(True)
    assert len(proof.wrong_slots) == planted > 0
    assert all(control["token_changed"] is not None for control in proof.wrong_slots)

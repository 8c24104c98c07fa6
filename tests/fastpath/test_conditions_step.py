"""Every condition of the step gate earns its place.

For a first line of defence there is a trace on which the twins differ, or the fast path raises,
once it is removed. Removing a second line leaves the twins equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bench_prep.child.device import has_device
from bench_prep.fastpath import gates
from bench_prep.prove.source.blocks import BlockPool
from bench_prep.prove.source.twins import Twins
from tests.fastpath.removal import SETTINGS, difference, remove_step_condition, twins

pytestmark = pytest.mark.vllm
#: Under async scheduling "not at index 0" closes the gate before these are asked.
ON_CPU = pytest.mark.skipif(has_device(), reason="a trace for the CPU platform")
MROPE = SETTINGS.model_copy(update={"mrope": True})


def last_token_of_a_prompt_alone(both: Twins) -> None:
    both.arrive(17)
    both.step(chunk=16)
    both.step(chunk=16)


def resumed_token_by_token(both: Twins) -> None:
    first, second = both.arrive(20), both.arrive(20)
    for _ in range(8):
        both.step()
    both.preempt(second)
    both.step(only=[first])
    both.finish(first)
    both.step(chunk=24)
    both.step(chunk=1)


def batch_replaced(both: Twins) -> None:
    """The KV cache gets other block sizes, as when vLLM initializes it anew."""
    first = both.arrive(20)
    for _ in range(5):
        both.step()
    both.finish(first)
    both.block_sizes = tuple(2 * size for size in both.block_sizes)
    _reinitialize(both)
    both.arrive(20)
    for _ in range(5):
        both.step()


@torch.inference_mode()
def _reinitialize(both: Twins) -> None:
    from bench_prep.decode import runner as decode

    both.pool = BlockPool(both.block_sizes, 0, both.rng)
    for runner in both.runners:
        config = runner.kv_cache_config
        groups = [
            dataclasses.replace(
                group, kv_cache_spec=dataclasses.replace(group.kv_cache_spec, block_size=size)
            )
            for group, size in zip(config.kv_cache_groups, both.block_sizes, strict=True)
        ]
        runner.kv_cache_config = dataclasses.replace(config, kv_cache_groups=groups)
        sizes = [list(both.block_sizes)] if decode.splits_blocks() else []
        runner.may_reinitialize_input_batch(runner.kv_cache_config, *sizes)
        if runner.device.type == "cpu":
            runner._postprocess_tensors()
    decode._same_uninitialized_memory(list(both.runners))


def two_of_them_in_turn(both: Twins) -> None:
    """Each alone, and the first one's last length is the second one's position."""
    first, second = both.arrive(20), both.arrive(21)
    both.step()
    both.step(only=[first])
    both.step(only=[second])


def two_that_decode(both: Twins) -> None:
    for length in (20, 30):
        both.arrive(length)
    for _ in range(3):
        both.step()


FIRST_LINE: dict[str, tuple[Callable[[Twins], None], Any]] = {
    gates.BATCH_REPLACED: (batch_replaced, ()),
    gates.NOT_AT_INDEX_0: (two_of_them_in_turn, pytest.mark.gpu),
    gates.IN_PROMPT: (last_token_of_a_prompt_alone, ON_CPU),
    gates.NOT_CONTINUOUS: (resumed_token_by_token, ON_CPU),
}
CASES = [pytest.param(reason, case[0], marks=case[1]) for reason, case in FIRST_LINE.items()]


def test_each_reason_is_a_first_or_a_second_line() -> None:
    assert set(FIRST_LINE) | set(gates.STEP_SECOND_LINE) == set(gates.STEP_REASONS)
    assert set(FIRST_LINE) & set(gates.STEP_SECOND_LINE) == set()


@pytest.mark.parametrize(("reason", "trace"), CASES)
def test_a_first_line_closes_the_gate_and_nothing_differs(
    reason: str, trace: Callable[[Twins], None]
) -> None:
    both, candidate = twins(MROPE)
    assert difference(both, candidate, trace) is None
    assert candidate.fallbacks[reason] > 0


@pytest.mark.parametrize(("reason", "trace"), CASES)
def test_without_a_first_line_the_twins_differ(
    reason: str, trace: Callable[[Twins], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_step_condition(monkeypatch, reason)
    both, candidate = twins(MROPE)
    assert difference(both, candidate, trace) is not None


def test_several_requests_and_several_tokens_stand_for_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove_step_condition(monkeypatch, gates.SEVERAL_REQUESTS)
    remove_step_condition(monkeypatch, gates.SEVERAL_TOKENS)
    # On a device the sampled tokens of several requests are a third sign of them.
    remove_step_condition(monkeypatch, gates.SAMPLED_TOKEN_KIND)
    both, candidate = twins()
    assert difference(both, candidate, two_that_decode) is not None


def mixed(both: Twins) -> None:
    """Requests come, run together, pause, resume and leave, in chunks of one token and more."""
    for trace in (two_of_them_in_turn, resumed_token_by_token, last_token_of_a_prompt_alone):
        trace(both)
        for request in list(both.live.values()):
            both.finish(request)
    rng = np.random.default_rng(7)
    for _ in range(150):
        live = list(both.live.values())
        event = rng.random()
        if not live or (event < 0.06 and len(live) < 3):
            both.arrive(int(rng.integers(1, 50)))
        elif event < 0.1 * len(live):
            both.finish(live[rng.integers(len(live))])
        elif event > 0.96:
            both.preempt(live[rng.integers(len(live))])
        live = list(both.live.values())
        alone = [live[rng.integers(len(live))]] if live and rng.random() < 0.2 else None
        both.step(chunk=int(rng.choice([1, 7, 16])), only=alone)


def test_the_mixed_trace_meets_the_conditions() -> None:
    both, candidate = twins(MROPE)
    assert difference(both, candidate, mixed) is None
    met = {gates.SEVERAL_REQUESTS, gates.SEVERAL_TOKENS}
    met |= {gates.NOT_AT_INDEX_0} if has_device() else {gates.IN_PROMPT, gates.LENGTH_MISMATCH}
    assert met <= set(candidate.fallbacks)


#: The parts of the sampled token's kind, each by itself.
PARTS = ("get_device", "dtype", "numel")


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        *((reason, "") for reason in gates.STEP_SECOND_LINE),
        *(pytest.param(gates.SAMPLED_TOKEN_KIND, part, marks=pytest.mark.gpu) for part in PARTS),
    ],
)
def test_without_a_second_line_the_twins_stay_equal(
    reason: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_step_condition(monkeypatch, reason, part)
    both, candidate = twins(MROPE)
    assert difference(both, candidate, mixed) is None
    assert candidate.dispatched > 10


class Encoding(Twins):
    """Every step has an encoder's input, wherever its requests are."""

    def _output(self, tokens: dict[str, int]) -> Any:
        inputs = {name: [0] for name in tokens}
        return dataclasses.replace(super()._output(tokens), scheduled_encoder_inputs=inputs)


def test_encoder_inputs_change_nothing_in_the_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_step_condition(monkeypatch, gates.ENCODER_INPUT)
    both, candidate = twins(kind=Encoding)
    assert difference(both, candidate, two_of_them_in_turn) is None
    both.arrive(5)
    assert difference(both, candidate, lambda b: [b.step() for _ in range(9)]) is None


@pytest.mark.gpu
def test_a_leaver_s_sampled_token_is_not_the_one_who_stays_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without both the index and the kind, the token of the request that left is read."""

    def first_of_two_leaves(both: Twins) -> None:
        first, _ = both.arrive(20), both.arrive(19)
        for _ in range(4):
            both.step()
        both.finish(first)
        both.step()

    for removed, differs in (((), False), ((gates.NOT_AT_INDEX_0, gates.SAMPLED_TOKEN_KIND), True)):
        with monkeypatch.context() as patch:
            for reason in (*removed, gates.LENGTH_MISMATCH):
                remove_step_condition(patch, reason)
            both, candidate = twins()
            assert (difference(both, candidate, first_of_two_leaves) is not None) is differs


@pytest.mark.gpu
def test_no_sampled_token_and_no_index_stand_for_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_step(both: Twins) -> None:
        both.arrive(1)
        both.step()

    remove_step_condition(monkeypatch, gates.NO_SAMPLED_TOKEN)
    remove_step_condition(monkeypatch, gates.NOT_AT_INDEX_0)
    both, candidate = twins()
    assert "NoneType" in str(difference(both, candidate, first_step))

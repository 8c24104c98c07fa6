"""The fast path and vLLM's own path leave the same state after every step of random traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from bench_prep.errors import BenchPrepError, OutputsDiffer
from bench_prep.fastpath import attach
from bench_prep.fastpath.gates import LENGTH_MISMATCH, SEVERAL_REQUESTS, SEVERAL_TOKENS
from bench_prep.prove.source.traces import Totals, operations, prove
from bench_prep.prove.source.variants import Variant, variants

pytestmark = pytest.mark.vllm
SEED = 20241


def test_five_thousand_steps() -> None:
    print(f"seed {SEED}")
    totals = prove(variants(), 5000, SEED)
    assert totals.steps >= 5000
    assert totals.missing() == []
    assert totals.dispatched > 1500
    assert totals.dispatched + sum(totals.fallbacks.values()) == totals.steps
    assert {SEVERAL_REQUESTS, SEVERAL_TOKENS, LENGTH_MISMATCH} < {*totals.fallbacks}


def test_the_same_seed_makes_the_same_trace() -> None:
    variant = variants()[0]

    def names() -> tuple[list[str], Any]:
        twins, candidate = variant.twins(seed=3)
        done = [operation.name for operation in operations(twins, random.Random(3), 60)]
        return done, (candidate.dispatched, candidate.fallbacks, twins.seen)

    assert names() == names()


class Faulty:
    """The fast path with a fault in each step that it dispatches."""

    def __init__(self, runner: Any, fault: Callable[[Any, int], None]) -> None:
        self._runner, self._fault, self._own = runner, fault, attach(runner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __call__(self, output: Any, counts: Any) -> Any:
        dispatched = self._own.dispatched
        result = self._own(output, counts)
        if self._own.dispatched > dispatched:
            self._fault(self._runner, int(self._runner.input_batch.num_computed_tokens_cpu[0]))
        return result


def _wrong_slot_at_a_boundary(runner: Any, position: int) -> None:
    if position % 32 == 0:
        runner.input_batch.block_table[1].slot_mapping.gpu[0] += 1


def _wrong_mirror(runner: Any, position: int) -> None:
    runner.num_scheduled_tokens.np[0] = 2  # read by nobody in this step


def _first_delta_kept(runner: Any, position: int) -> None:
    runner.mrope_positions.gpu[:, 0] = position - 3


def _token_of_the_previous_position(runner: Any, position: int) -> None:
    runner.input_ids.gpu[0] = int(runner.input_batch.token_ids_cpu[0, position - 1])


def _length_left_behind(runner: Any, position: int) -> None:
    runner.seq_lens[1] = 1


def _list_grows(runner: Any, position: int) -> None:
    runner.requests[runner.input_batch.req_ids[0]].output_token_ids.append(5)


def _equal_buffer_elsewhere(runner: Any, position: int) -> None:
    runner.positions = runner.positions.clone()


@pytest.mark.parametrize(
    "fault",
    [
        _wrong_slot_at_a_boundary,
        _wrong_mirror,
        _first_delta_kept,
        _token_of_the_previous_position,
        _length_left_behind,
        _list_grows,
        _equal_buffer_elsewhere,
    ],
)
def test_a_planted_fault_is_found(fault: Callable[[Any, int], None]) -> None:
    variant = Variant("M-RoPE", (16, 32), mrope=True)
    with pytest.raises(
        OutputsDiffer, match=r"M-RoPE, trace 0/\d, step \d+, .*(expected .*found|moved)"
    ):
        prove((variant,), 1500, 0, attach=lambda runner: Faulty(runner, fault))


def test_a_fast_path_that_gives_up_is_no_proof() -> None:
    def gives_up(runner: Any) -> Any:
        candidate = attach(runner)
        candidate.close("planted")
        return candidate

    with pytest.raises(BenchPrepError, match="gave up: planted"):
        prove(variants()[:1], 10, 0, attach=gives_up)


def test_a_dummy_run_that_the_fast_path_does_not_hear_of_is_found() -> None:
    """The lengths that it leaves may be those of the next step, so that no step gate closes."""

    def unheard(runner: Any) -> Any:
        candidate = attach(runner)
        del runner._dummy_run
        return candidate

    position = 17
    for attached, differs in ((unheard, True), (attach, False)):
        twins, candidate = variants()[0].twins(0, attached)
        twins.arrive(position - 2)
        for _ in range(3):
            twins.step()
        twins.dummy_run(position, attention=True)
        before = candidate.dispatched
        with pytest.raises(OutputsDiffer) if differs else nullcontext():
            twins.step()
        assert candidate.dispatched == before + 1


def test_embeddings_that_a_row_keeps_are_copied_as_by_vllm() -> None:
    """vLLM 0.26 forgets to take them away with their request. The copy is overwritten before the
    model on the CPU platform, so it is looked at behind the preparation."""
    twins, candidate = Variant("prompt embeddings", (16, 16), prompt_embeds=True).twins(seed=0)
    rows: list[list[torch.Tensor]] = [[], []]

    def recorded(prepare: Callable[..., Any], runner: Any, found: list[torch.Tensor]) -> Any:
        def call(*arguments: Any) -> Any:
            result = prepare(*arguments)
            found.append(runner.inputs_embeds.cpu[0].clone())
            return result

        return call

    for runner, found in zip(twins.runners, rows, strict=True):
        runner._prepare_inputs = recorded(runner._prepare_inputs, runner, found)
    twins.arrive(4)
    for _ in range(3):
        twins.step()
    before = candidate.dispatched
    for runner in twins.runners:
        left = torch.arange(9)[:, None].repeat(1, runner.inputs_embeds_size)
        runner.input_batch.req_prompt_embeds[0] = left.to(runner.dtype)
    for _ in range(6):
        twins.step()
    assert candidate.dispatched == before + 6
    assert [float(row[0]) for row in rows[0][3:6]] == [6, 7, 8]
    assert all(map(torch.equal, *rows))


def test_every_variant_begins_soon() -> None:
    begun: list[tuple[str, int]] = []
    prove(
        (variants()[0], Variant("another", (32,))),
        400,
        0,
        lambda totals, name: begun.append((name, totals.steps)),
    )
    assert min(steps for name, steps in begun if name == "another") < 200


def test_what_a_proof_lacks_is_named() -> None:
    totals = Totals()
    totals.coverage.update({"step": 3, "arrive": 1})
    missing = totals.missing()
    assert "step" not in missing and "arrive" not in missing
    assert {"preempt", "dummy run", "prefix-cache hit", "structured output"} <= {*missing}

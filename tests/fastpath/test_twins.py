"""Traces written by hand after which the fast path and vLLM's own path leave the same state.

Random ones are in `tests/prove/source`.
"""

from __future__ import annotations

from typing import Any

import pytest

from bench_prep.fastpath.gates import IN_PROMPT, NO_SAMPLED_TOKEN
from bench_prep.prove.source.twins import Twins
from bench_prep.settings import RunSettings

pytestmark = pytest.mark.vllm
SETTINGS = RunSettings(
    position=100, max_model_len=512, max_num_reqs=6, max_num_tokens=128, block_sizes=(16, 32)
)


def twins(settings: RunSettings) -> tuple[Twins, Any]:
    from bench_prep.decode.runner import make_runners
    from bench_prep.fastpath import attach

    baseline, runner = make_runners(settings, 2)
    candidate = attach(runner)
    return Twins(baseline, runner, candidate, settings.block_sizes), candidate


@pytest.mark.parametrize("mrope", [False, True])
@pytest.mark.parametrize("prompt_embeds", [False, True])
@pytest.mark.parametrize("block_sizes", [(16,), (16, 16), (64, 16, 32)])
def test_steady_decode(mrope: bool, prompt_embeds: bool, block_sizes: tuple[int, ...]) -> None:
    from bench_prep.decode.equality import prove_equal
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.fastpath import attach

    settings = SETTINGS.model_copy(
        update={"mrope": mrope, "prompt_embeds": prompt_embeds, "block_sizes": block_sizes}
    )
    baseline, runner = make_runners(settings, 2)
    candidate = attach(runner)
    work = Workload.make(settings, runner.inputs_embeds_size, runner.dtype, 300)
    proof = prove_equal(
        Decoder(baseline, work, baseline._prepare_inputs), Decoder(runner, work, candidate), [work]
    )
    assert proof.steps == 201
    assert candidate.dispatched == 201
    # The step that computes the prompt's last token; on a device no sampled token is there yet.
    reason = IN_PROMPT if runner.device.type == "cpu" else NO_SAMPLED_TOKEN
    assert dict(candidate.fallbacks) == {reason: 1}


def test_up_to_the_model_s_end() -> None:
    both, candidate = twins(SETTINGS)
    request = both.arrive(500)
    while request.known < 512:
        both.step(chunk=128)
    assert candidate.dispatched == 11


def test_a_request_alone_then_two_then_alone_again() -> None:
    both, candidate = twins(SETTINGS)
    both.arrive(20)
    for _ in range(20):
        both.step()
    assert candidate.dispatched == 19
    second = both.arrive(40)
    both.step(chunk=16)  # chunked prefill beside the decode
    for _ in range(20):
        both.step(chunk=16)
    assert candidate.dispatched == 19
    both.finish(second)
    for _ in range(20):
        both.step()
    assert candidate.dispatched > 19 + 17
    assert candidate.fallbacks["several requests"] == 21


def test_the_first_request_leaves_and_the_second_moves_to_its_row() -> None:
    both, candidate = twins(SETTINGS)
    first = both.arrive(20)
    both.arrive(30)
    for _ in range(5):
        both.step()
    both.finish(first)
    for _ in range(40):
        both.step()
    assert candidate.dispatched >= 38


def test_preempted_and_resumed() -> None:
    both, candidate = twins(SETTINGS)
    first, second = both.arrive(20), both.arrive(30)
    for _ in range(6):
        both.step()
    both.preempt(second)
    for _ in range(6):
        both.step(only=[first])
    before = candidate.dispatched
    assert before >= 4
    for _ in range(6):
        both.step()
    assert candidate.dispatched == before

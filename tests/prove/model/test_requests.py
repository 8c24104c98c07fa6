"""The requests of a proof cross what they are meant to cross, on every geometry."""

from __future__ import annotations

import pytest

from bench_prep.engine.vllm.names import GREEDY
from bench_prep.prove.model.requests import GREEDY_TOKENS, Phase, phases


def of(block_size: int, vocab_size: int = 1024, max_num_batched_tokens: int = 256) -> list[Phase]:
    return phases(
        block_size=block_size,
        vocab_size=vocab_size,
        max_model_len=4096,
        max_num_batched_tokens=max_num_batched_tokens,
    )


@pytest.mark.parametrize("block_size", [16, 32, 144, 544, 1056, 2048])
def test_the_greedy_request_crosses_a_block_boundary_early(block_size: int) -> None:
    (greedy,) = next(phase for phase in of(block_size) if phase.name == GREEDY).requests
    length = len(greedy.prompt)
    boundary = -(-length // block_size) * block_size
    assert length < boundary <= length + GREEDY_TOKENS // 2
    assert length + GREEDY_TOKENS <= 4096


@pytest.mark.parametrize("max_num_batched_tokens", [256, 2048])
@pytest.mark.parametrize("block_size", [1, 32, 4096])
def test_every_request_fits(max_num_batched_tokens: int, block_size: int) -> None:
    made = of(block_size, max_num_batched_tokens=max_num_batched_tokens)
    assert len({phase.name for phase in made}) == len(made)
    for phase in made:
        for request in phase.requests:
            assert 0 < len(request.prompt) < 4096
            assert all(0 <= token < 1024 for token in request.prompt)
    long = next(phase for phase in made if "chunks" in phase.name).requests[0]
    assert len(long.prompt) > max_num_batched_tokens


def test_the_same_every_time() -> None:
    assert of(32) == of(32)

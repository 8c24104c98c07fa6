"""Targets with random content, and what `Mirrors` reads of a runner, without vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from bench_prep.fastpath.targets import Group, Targets

MODEL_LENGTH = 4096


def targets(
    seed: int, reqs: int, tokens: int, sizes: list[int | None], mrope: bool, embeds: bool
) -> Targets:
    """Targets full of random content; a size of None is a group without slots."""
    torch.manual_seed(seed)

    def filled(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.rand(shape) < 0.5
        return torch.randint(-9, 99, shape, dtype=dtype)

    groups = tuple(
        Group(
            torch.randint(1, 2**31 // (size or 16), (reqs, -(-MODEL_LENGTH // (size or 16))),
                          dtype=torch.int32),
            None if size is None else filled(tokens, dtype=torch.int64),
            size or 16,
        )
        for size in sizes
    )  # fmt: skip
    return Targets(
        input_ids=filled(tokens, dtype=torch.int32),
        positions=filled(tokens, dtype=torch.int64),
        seq_lens=filled(reqs, dtype=torch.int32),
        num_computed_tokens=filled(reqs, dtype=torch.int32),
        query_start_loc=filled(reqs + 1, dtype=torch.int32),
        discard_request_mask=filled(reqs, dtype=torch.bool),
        num_accepted_tokens=filled(reqs, dtype=torch.int32),
        req_indices=filled(tokens, dtype=torch.int64),
        query_pos=filled(max(tokens, reqs + 1), dtype=torch.int64),
        num_scheduled_tokens=filled(reqs, dtype=torch.int32),
        is_token_ids=filled(tokens, dtype=torch.bool) if embeds else None,
        mrope_positions=filled(3, tokens + 1, dtype=torch.int64) if mrope else None,
        groups=groups,
        max_num_reqs=reqs,
        max_num_tokens=tokens,
        pads_slots=True,
    )


def runner_of(where: Targets, token: int, position: int) -> Any:
    """What `Mirrors` reads of a runner whose host buffers are these targets."""

    def buffer(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else SimpleNamespace(np=tensor.numpy())

    tokens = torch.zeros(1, MODEL_LENGTH, dtype=torch.int32)
    tokens[0, position] = token
    return SimpleNamespace(
        input_batch=SimpleNamespace(
            token_ids_cpu=tokens.numpy(),
            is_token_ids=torch.ones(1, MODEL_LENGTH).bool().numpy(),
            req_prompt_embeds={},
        ),
        input_ids=buffer(where.input_ids),
        query_start_loc=buffer(where.query_start_loc),
        optimistic_seq_lens_cpu=torch.zeros_like(where.seq_lens),
        prev_positions=buffer(torch.zeros(1, dtype=torch.int64)),
        discard_request_mask=buffer(where.discard_request_mask),
        num_accepted_tokens=buffer(where.num_accepted_tokens),
        req_indices=buffer(where.req_indices),
        query_pos=buffer(where.query_pos),
        num_scheduled_tokens=buffer(where.num_scheduled_tokens),
        enable_prompt_embeds=where.is_token_ids is not None,
        is_token_ids=buffer(where.is_token_ids),
        inputs_embeds=SimpleNamespace(cpu=torch.zeros(1, 1)),
        uses_mrope=where.mrope_positions is not None,
        mrope_positions=buffer(where.mrope_positions),
    )

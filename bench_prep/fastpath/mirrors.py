"""The host side of a step: everything that later code can read on the host is kept true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench_prep.fastpath.targets import memory


class Mirrors:
    """Writes the host buffers of one V1 runner for a single-token decode step.

    On the CPU platform vLLM's device buffers are these very host buffers.

    Attributes:
        write_fixed: write what every single-token step of one request leaves alike. Its argument is
            the request's row in the previous step, -1 when no sampled token was left on the device.
        write: write the step that computes the token at a position, after `write_fixed`. Its
            arguments are the position and the position shifted by the request's M-RoPE delta.
    """

    __slots__ = ("write", "write_fixed")

    def __init__(self, runner: Any) -> None:
        self.write_fixed = _fixed(runner)
        self.write = _step(runner)


def _fixed(runner: Any) -> Callable[[int], None]:
    query_start = memory(runner.query_start_loc.np)
    lengths = memory(runner.optimistic_seq_lens_cpu.numpy())
    accepted = memory(runner.num_accepted_tokens.np)
    previous = memory(runner.prev_positions.np)
    discard = memory(runner.discard_request_mask.np)
    req_indices = memory(runner.req_indices.np)
    query_pos = memory(runner.query_pos.np)
    scheduled = memory(runner.num_scheduled_tokens.np)
    starts = np.ones_like(runner.query_start_loc.np)
    starts[0] = 0
    one_request = memory(starts)
    no_lengths = memory(np.zeros_like(runner.optimistic_seq_lens_cpu.numpy()))
    all_one = memory(np.ones_like(runner.num_accepted_tokens.np))

    def write_fixed(previous_index: int) -> None:
        query_start[:] = one_request
        lengths[:] = no_lengths
        accepted[:] = all_one
        previous[0] = previous_index
        discard[0] = False
        req_indices[0] = 0
        query_pos[0] = 0
        scheduled[0] = 1

    return write_fixed


def _step(runner: Any) -> Callable[[int, int], None]:
    batch = runner.input_batch
    tokens = memory(batch.token_ids_cpu[0])
    input_ids = memory(runner.input_ids.np)
    lengths = memory(runner.optimistic_seq_lens_cpu.numpy())
    accepted = memory(runner.num_accepted_tokens.np)
    rows = [memory(row) for row in runner.mrope_positions.np] if runner.uses_mrope else []

    def write(position: int, mrope_position: int) -> None:
        input_ids[0] = tokens[position]
        lengths[0] = position + 1
        # The request's own is not left alone where Mamba's states are aligned to blocks.
        accepted[0] = 1
        for row in rows:
            row[0] = mrope_position

    if not runner.enable_prompt_embeds:
        return write
    token_flags = memory(batch.is_token_ids[0])
    is_token_ids = memory(runner.is_token_ids.np)
    embeds: dict[int, Any] = batch.req_prompt_embeds
    embeds_row = runner.inputs_embeds.cpu[0]

    def write_with_embeds(position: int, mrope_position: int) -> None:
        write(position, mrope_position)
        is_token_ids[0] = token_flags[position]
        # Up to 0.26 or so a row keeps the prompt embeddings of a request that has left it, and
        # vLLM copies them for the next one, where nobody reads them.
        left = embeds.get(0)
        if left is not None and position < len(left):
            embeds_row.copy_(left[position])

    return write_with_embeds

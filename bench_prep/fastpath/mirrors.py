"""The host side of a step: everything that later code can read on the host is kept true."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench_prep.fastpath.targets import memory


class Mirrors:
    """Writes the host buffers of one V1 runner for a single-token decode step.

    On the CPU platform vLLM's device buffers are these very host buffers.
    """

    __slots__ = (
        "_accepted",
        "_all_one",
        "_discard",
        "_embeds",
        "_embeds_row",
        "_input_ids",
        "_is_token_ids",
        "_lengths",
        "_mrope_rows",
        "_no_lengths",
        "_one_request",
        "_previous",
        "_query_pos",
        "_query_start",
        "_req_indices",
        "_scheduled",
        "_token_flags",
        "_tokens",
    )

    def __init__(self, runner: Any) -> None:
        batch = runner.input_batch
        self._tokens = memory(batch.token_ids_cpu[0])
        self._input_ids = memory(runner.input_ids.np)
        self._query_start = memory(runner.query_start_loc.np)
        self._lengths = memory(runner.optimistic_seq_lens_cpu.numpy())
        self._previous = memory(runner.prev_positions.np)
        self._discard = memory(runner.discard_request_mask.np)
        self._accepted = memory(runner.num_accepted_tokens.np)
        self._req_indices = memory(runner.req_indices.np)
        self._query_pos = memory(runner.query_pos.np)
        self._scheduled = memory(runner.num_scheduled_tokens.np)
        starts = np.ones_like(runner.query_start_loc.np)
        starts[0] = 0
        self._one_request = memory(starts)
        self._no_lengths = memory(np.zeros_like(runner.optimistic_seq_lens_cpu.numpy()))
        self._all_one = memory(np.ones_like(runner.num_accepted_tokens.np))
        embeds = runner.enable_prompt_embeds
        self._token_flags = memory(batch.is_token_ids[0]) if embeds else None
        self._is_token_ids = memory(runner.is_token_ids.np) if embeds else None
        self._embeds: dict[int, Any] = batch.req_prompt_embeds if embeds else {}
        self._embeds_row: Any = runner.inputs_embeds.cpu[0] if embeds else None
        self._mrope_rows = (
            [memory(row) for row in runner.mrope_positions.np] if runner.uses_mrope else ()
        )

    def write_fixed(self, previous_index: int) -> None:
        """Write what every single-token step of one request leaves alike.

        `previous_index` is the request's row in the previous step, -1 when no sampled token was
        left on the device.
        """
        self._query_start[:] = self._one_request
        self._lengths[:] = self._no_lengths
        self._previous[0] = previous_index
        self._discard[0] = False
        self._req_indices[0] = 0
        self._query_pos[0] = 0
        self._scheduled[0] = 1

    def write(self, position: int, mrope_position: int) -> None:
        """Write the step that computes the token at `position`, after `write_fixed`.

        `mrope_position` is the position shifted by the request's delta.
        """
        self._input_ids[0] = self._tokens[position]
        self._lengths[0] = position + 1
        # Not left alone between two steps where Mamba's states are aligned to blocks.
        self._accepted[:] = self._all_one
        if self._is_token_ids is not None and self._token_flags is not None:
            self._is_token_ids[0] = self._token_flags[position]
            # Up to 0.26 or so a row keeps the prompt embeddings of a request that has left it, and
            # vLLM copies them for the next one, where nobody reads them.
            left = self._embeds.get(0)
            if left is not None and position < len(left):
                self._embeds_row.copy_(left[position])
        for row in self._mrope_rows:
            row[0] = mrope_position

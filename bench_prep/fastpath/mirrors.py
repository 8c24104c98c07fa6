"""The host side of a step: everything that later code can read on the host is kept true."""

from __future__ import annotations

from typing import Any


class Mirrors:
    """Writes the host buffers of one V1 runner for a single-token decode step.

    On the CPU platform vLLM's device buffers are these very host buffers.
    """

    __slots__ = (
        "_accepted",
        "_discard",
        "_input_ids",
        "_is_token_ids",
        "_lengths",
        "_mrope",
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
        self._tokens = batch.token_ids_cpu
        self._input_ids = runner.input_ids.np
        self._query_start = runner.query_start_loc.np
        self._lengths = runner.optimistic_seq_lens_cpu.numpy()
        self._previous = runner.prev_positions.np
        self._discard = runner.discard_request_mask.np
        self._accepted = runner.num_accepted_tokens.np
        self._req_indices = runner.req_indices.np
        self._query_pos = runner.query_pos.np
        self._scheduled = runner.num_scheduled_tokens.np
        embeds = runner.enable_prompt_embeds
        self._token_flags = batch.is_token_ids if embeds else None
        self._is_token_ids = runner.is_token_ids.np if embeds else None
        self._mrope = runner.mrope_positions.np[:, 0] if runner.uses_mrope else None

    def write(self, position: int, mrope_position: int, previous_index: int) -> None:
        """Write the step that computes the token at `position`.

        `previous_index` is the request's row in the previous step, -1 when no sampled token was
        left on the device; `mrope_position` is the position shifted by the request's delta.
        """
        self._input_ids[0] = self._tokens[0, position]
        query_start = self._query_start
        query_start.fill(1)
        query_start[0] = 0
        lengths = self._lengths
        lengths.fill(0)
        lengths[0] = position + 1
        self._previous[0] = previous_index
        self._discard[0] = False
        self._accepted.fill(1)
        self._req_indices[0] = 0
        self._query_pos[0] = 0
        self._scheduled[0] = 1
        if self._is_token_ids is not None and self._token_flags is not None:
            self._is_token_ids[0] = self._token_flags[0, position]
        if self._mrope is not None:
            self._mrope.fill(mrope_position)

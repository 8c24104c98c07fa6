"""What stands in for the model: logits that depend on every token's id and position.

A runner with it takes whole steps of vLLM's own, `execute_model` and `sample_tokens`, in which only
the forward pass is missing. A wrong token or position gives other logits, so another sampled token.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

#: Distinct rows of logits; the row's number fits into a hidden state's bfloat16 exactly.
_ROWS = 128
_STRIDE = 7  # of positions: neighbours get rows far apart


class StandIn(torch.nn.Module):
    """Takes the place of `runner.model`; hidden states are `[tokens, hidden]`."""

    def __init__(self, hidden_size: int, vocabulary: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._logits = _logits(vocabulary, device)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        rows = positions.sum(dim=0) if positions.dim() == 2 else positions
        if inputs_embeds is not None:
            tokens = (inputs_embeds[:, 0].float() * 64).long()
        else:
            assert input_ids is not None
            tokens = input_ids.long()
        row = (tokens + rows * _STRIDE) % _ROWS
        return row[:, None].expand(-1, self._hidden_size).to(self._dtype)

    def embed_input_ids(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        embedding = (input_ids % _ROWS).to(self._dtype) / 64
        return embedding[:, None].expand(-1, self._hidden_size)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._logits[hidden_states[:, 0].long() % _ROWS]  # a copy: samplers write into it


@functools.cache
def _logits(vocabulary: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(_ROWS)
    return torch.randn(_ROWS, vocabulary, generator=generator).to(device)

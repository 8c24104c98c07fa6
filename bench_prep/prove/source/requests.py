"""Requests as vLLM's scheduler sees them, and what they may ask of the sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from bench_prep.decode.model import VOCAB_SIZE

#: A whole number between two bounds, both included: chosen by hypothesis or by a seeded generator.
Draw = Callable[[int, int], int]

STRUCTURED, SEED, STOP_TOKEN = "structured output", "seed", "stop token"
PROMPT_LOGPROBS, PENALTIES = "prompt logprobs", "penalties"
#: What a request may ask for, by name: `SamplingParams` of it. Temperature 0 unless it says so.
_ASKED: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "greedy": lambda draw: {},
    "temperature": lambda draw: {
        # `top_p` sorts the vocabulary, which takes longer than all the rest of a step.
        "temperature": 0.7, "top_k": draw(1, 50), "top_p": (0.9, 1.0)[min(draw(0, 9), 1)],
    },
    SEED: lambda draw: {"temperature": 1.0, "seed": draw(0, 2**31)},
    PENALTIES: lambda draw: {
        "frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2,
    },
    "logprobs": lambda draw: {"logprobs": draw(0, 3)},
    PROMPT_LOGPROBS: lambda draw: {"prompt_logprobs": draw(0, 2)},
    "minimum of tokens": lambda draw: {"min_tokens": draw(1, 9), "stop_token_ids": [7]},
    STOP_TOKEN: lambda draw: {"stop_token_ids": [*range(draw(0, 39), VOCAB_SIZE, 40)]},
    "allowed tokens": lambda draw: {"allowed_token_ids": [draw(0, VOCAB_SIZE - 1), 5, 6]},
    "logit bias": lambda draw: {"logit_bias": {draw(0, VOCAB_SIZE - 1): 30.0}},
    "bad words": lambda draw: {"bad_words": []},
    STRUCTURED: lambda draw: {},
}  # fmt: skip
ASKED = tuple(_ASKED)


def sampling_params(asked: str, draw: Draw) -> Any:
    """vLLM's `SamplingParams` of a request that asks for one of `ASKED`."""
    from vllm import SamplingParams

    params = SamplingParams(**{"temperature": 0.0, "max_tokens": None} | _ASKED[asked](draw))
    if asked == "bad words":
        # Their token ids are a tokenizer's work.
        params._bad_words_token_ids = [[draw(0, VOCAB_SIZE - 1)], [5, draw(0, VOCAB_SIZE - 1)]]
    return params


@dataclasses.dataclass
class Request:
    """One request as the scheduler sees it.

    `blocks[g]` are its blocks of KV group g, `computed` how many of its tokens are computed, and
    `tokens` its sampled ones. `prompt` has zeros where there are only embeddings.
    """

    name: str
    prompt: list[int]
    blocks: list[list[int]]
    asked: str = "greedy"
    params: Any = None
    embeds: torch.Tensor | None = None  # [prompt tokens, hidden]
    is_token: list[bool] | None = None  # which of the prompt's positions are token ids
    computed: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    in_batch: bool = False  # scheduled in the previous step
    fresh: bool = True  # the runner has not heard of it
    preempted: bool = False
    pause: int = 0  # steps for which it is not scheduled

    @property
    def known(self) -> int:
        """Tokens that exist, computed or not."""
        return len(self.prompt) + len(self.tokens)

    @property
    def decoding(self) -> bool:
        """Whether only its newest token is not computed."""
        return self.computed == self.known - 1 >= len(self.prompt)

    def stops(self, max_model_len: int) -> bool:
        """Whether vLLM's scheduler would end it after its newest token."""
        if self.known >= max_model_len:
            return True
        return (
            bool(self.tokens)
            and len(self.tokens) > self.params.min_tokens
            and self.tokens[-1] in (self.params.stop_token_ids or ())
        )

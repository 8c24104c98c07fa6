"""The requests of a proof: every kind that changes how a step is prepared or sampled."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from bench_prep.engine.vllm.names import GREEDY, GREEDY_AGAIN

#: Chosen tokens' and the most likely tokens' log-probabilities.
LOGPROBS = 5
GREEDY_TOKENS = 200
#: Made of the letters that the proof's tokenizer has as its first tokens.
WORDS = "([aeiou][a-z])+"


@dataclass(frozen=True)
class Request:
    """Token ids of the prompt, and the arguments of vLLM's `SamplingParams`.

    `structured_outputs` are those of its `StructuredOutputsParams`.
    """

    prompt: tuple[int, ...]
    sampling: dict[str, Any]


@dataclass(frozen=True)
class Phase:
    """Requests that arrive together, when no other is there."""

    name: str
    requests: tuple[Request, ...]


def phases(
    *, block_size: int, vocab_size: int, max_model_len: int, max_num_batched_tokens: int
) -> list[Phase]:
    """All phases for an engine of this geometry, sizes in tokens.

    `block_size` is the largest of the KV groups with slots: the greedy request crosses a boundary
    of each soon after its first token, where the model's length allows it.
    """
    random_ids = random.Random(0)
    # The last tokens of a vocabulary may stand for images, which are not there.
    ordinary = vocab_size * 7 // 8

    def prompt(length: int) -> tuple[int, ...]:
        return tuple(random_ids.randrange(ordinary) for _ in range(length))

    def request(ids: tuple[int, ...], max_tokens: int, **sampling: Any) -> Request:
        defaults = {"temperature": 0.0, "ignore_eos": True, "logprobs": LOGPROBS}
        return Request(ids, {**defaults, "max_tokens": max_tokens, **sampling})

    room = max_model_len - GREEDY_TOKENS
    length = max(1, min(3, room // block_size)) * block_size - 20
    greedy = request(prompt(max(1, min(length, room))), GREEDY_TOKENS)
    sampled = {"temperature": 0.8, "top_p": 0.9, "top_k": 50}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2}
    rare_stops = list(range(0, vocab_size, 16))
    long = min(3 * max_num_batched_tokens + 7, max_model_len - 60)
    alone = {
        GREEDY: greedy,
        GREEDY_AGAIN: greedy,
        "one token": request(prompt(1), 70),
        "sampled": request(prompt(50), 80, seed=1, **sampled),
        "penalties": request(prompt(33), 60, **penalties),
        "allowed tokens": request(prompt(31), 20, allowed_token_ids=list(range(64)), min_p=0.01),
        "stop tokens": request(prompt(40), 80, stop_token_ids=rare_stops, min_tokens=4),
        "structured outputs": request(prompt(37), 50, structured_outputs={"regex": WORDS}),
        "log-probabilities of the prompt": request(prompt(45), 8, prompt_logprobs=1),
        "a long prompt in chunks": request(prompt(long), 40),
        "up to the model's length": request(prompt(max_model_len - 40), 100),
    }
    several = (
        request(prompt(20), 10),
        request(prompt(90), 25, seed=2, **sampled),
        request(prompt(max_num_batched_tokens // 2), 120),
        request(prompt(35), 40, **penalties),
    )
    together = (request(prompt(64), 30), request(prompt(64), 45, seed=3, **sampled))
    return [
        *(Phase(name, (one,)) for name, one in alone.items()),
        Phase("four at once, then one", several),
        Phase("two at once, then the second", together),
        Phase("alone again", (request(prompt(62), 40),)),
    ]

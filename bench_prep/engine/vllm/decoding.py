"""One request in decode, for as many steps as are asked for."""

from __future__ import annotations

from typing import Any

from vllm import LLM, SamplingParams

from bench_prep.errors import OutputsDiffer

#: Steps that are compared before the timing, and with which every kernel is warmed up.
CHECKED_STEPS = 200


class Decoding:
    """A prompt of `prompt_tokens`, decoded greedily up to the model's length, again and again."""

    def __init__(self, llm: LLM, prompt_tokens: int, max_model_len: int) -> None:
        self._llm = llm
        self._prompt: dict[str, Any] = {
            "prompt_token_ids": [1 + i % 500 for i in range(prompt_tokens)]
        }
        self._room = max_model_len - prompt_tokens - 1

    def decode(self, tokens: int) -> None:
        """At least so many tokens, of one request or of several in turn."""
        while tokens > 0:
            sampling = SamplingParams(
                temperature=0.0,
                max_tokens=min(tokens, self._room),
                ignore_eos=True,
                detokenize=False,
            )
            self._llm.generate([self._prompt], sampling, use_tqdm=False)
            tokens -= self._room

    def warm_up(self, *, checked: bool) -> int:
        """Take `CHECKED_STEPS`; how many were compared, where the worker's check has begun.

        Raises:
            OutputsDiffer: the two preparations left another state.
        """
        self.decode(CHECKED_STEPS)
        if not checked:
            return 0
        found = self._llm.collective_rpc("end_check")[0]
        if found["closed"] is not None:
            raise OutputsDiffer(f"outputs differ: {found['closed']}", "no timing is reported")
        return int(found["checked"])

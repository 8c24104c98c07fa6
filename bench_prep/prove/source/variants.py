"""The spread of settings over which the fast path is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench_prep.decode.runner import Hybrid, make_runners, splits_blocks
from bench_prep.fastpath import attach
from bench_prep.prove.source.twins import Twins
from bench_prep.settings import RunSettings

#: Takes a runner and returns what takes the place of its `_prepare_inputs`.
Attach = Callable[[Any], Any]


@dataclass(frozen=True)
class Variant:
    """One set of settings; lengths and block sizes are in tokens.

    `max_model_len` is a multiple of each block size, so that rows of block tables become full.
    """

    name: str
    block_sizes: tuple[int, ...]
    max_model_len: int = 128
    mrope: bool = False
    prompt_embeds: bool = False
    hybrid: Hybrid = field(default_factory=Hybrid)
    reorders: bool = False  # decodes first, as some attention backends want it

    def settings(self) -> RunSettings:
        return RunSettings.model_validate(
            {
                "position": 1,
                "max_model_len": self.max_model_len,
                "max_num_reqs": 5,
                "max_num_tokens": 160,
                "block_sizes": self.block_sizes,
                "mrope": self.mrope,
                "prompt_embeds": self.prompt_embeds,
            }
        )

    def twins(self, seed: int, attach: Attach = attach) -> tuple[Twins, Any]:
        """New twins of vLLM's own path and a candidate, and the candidate.

        Raises:
            Missing: the candidate does not serve this vLLM, or vLLM has no device here.
        """
        baseline, runner = make_runners(self.settings(), 2, self.hybrid)
        candidate = attach(runner)
        twins = Twins(
            baseline,
            runner,
            candidate,
            self.block_sizes,
            state_groups=self.hybrid.state_groups,
            reorders=self.reorders,
            seed=seed,
        )
        return twins, candidate


_VARIANTS = (
    Variant("one group", (16,)),
    Variant("three groups", (64, 16, 32), max_model_len=256),
    Variant("M-RoPE", (16, 32), mrope=True),
    Variant("prompt embeddings", (16, 16), prompt_embeds=True),
    Variant("M-RoPE and prompt embeddings", (32,), mrope=True, prompt_embeds=True),
    Variant("hybrid", (16,), hybrid=Hybrid(state_groups=3)),
    Variant("hybrid, reordered, M-RoPE", (32,), mrope=True, hybrid=Hybrid(1), reorders=True),
    Variant("long", (16, 16), max_model_len=1024, reorders=True),
)
_SPLIT = Variant("split blocks", (64, 32), hybrid=Hybrid(1, kernel_block_sizes=(16, 32)))


def variants() -> tuple[Variant, ...]:
    """Those that the installed vLLM has."""
    return (*_VARIANTS, _SPLIT) if splits_blocks() else _VARIANTS

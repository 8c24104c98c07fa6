"""Seeded random weights under which a model's outputs vary, for any architecture and size.

vLLM's own dummy weights are so small that every step's token is the same; equal outputs then
prove nothing. These are drawn inside the worker, by a model loader of vLLM's, so that no file is
written and the engine prepares and compiles them like any others.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from bench_prep.engine.vllm.names import LOAD_FORMAT
from bench_prep.fastpath.fingerprint import known

SEED = 20240924
#: Standard deviation of a projection's output for an input of standard deviation 1. Queries and
#: keys of 2 make scores of about 4: attention looks at few tokens, so that each KV slot counts.
GAIN = 2.0


@register_model_loader(LOAD_FORMAT)
class VaryingWeights(DummyModelLoader):  # type: ignore[misc]
    """`load_format` of an engine with these weights; the folder needs a `config.json` only."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Draw every parameter from its name's own generator: no order matters.

        Nobody is served by such a model, so the fast path may be tried on any architecture.
        """
        _admit(model_config.hf_config.architectures)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                draw(name, parameter.data)


def draw(name: str, weight: torch.Tensor) -> None:
    """Fill `weight` in place, by its name's generator on its device.

    Raises:
        TypeError: a quantized weight, of integers or of eight bits.
    """
    if not weight.is_floating_point() or weight.element_size() < 2:
        raise TypeError(f"{name} is {weight.dtype}: quantized models cannot be drawn")
    generator = torch.Generator(weight.device)
    generator.manual_seed(int.from_bytes(hashlib.sha256(f"{SEED} {name}".encode()).digest()[:7]))
    part = name.rpartition(".")[2]
    if part == "A_log":  # recurrent layers forget at rates between 1 and 16 ...
        weight.uniform_(1, 16, generator=generator).log_()
    elif part == "dt_bias":  # ... times a step that keeps a memory of tens of tokens
        weight.uniform_(-7, -2, generator=generator)
    elif weight.dim() > 1:
        weight.normal_(0, GAIN / math.sqrt(weight.shape[-1]), generator=generator)
    elif part == "weight" and ("norm" in name or ".ln" in name):
        # Initialised to a factor of 1, be it w or 1 + w. A factor around 0 keeps an output that
        # is tied to the embedding from repeating its input.
        scale = GAIN if "q_norm" in name or "k_norm" in name else 1.0
        factor = torch.randn(weight.shape, generator=generator, device=weight.device) * scale
        weight.add_((factor - 1).to(weight.dtype))
    else:  # a bias, or what else a layer has
        weight.normal_(0, 0.1, generator=generator)


def _admit(architectures: list[str]) -> None:
    """List them as proven, in this process alone."""
    listed = known()["architectures"]
    listed.extend(name for name in architectures if name not in listed)

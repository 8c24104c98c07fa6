"""The arguments of every engine, as people serve: vLLM's own compilation and graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench_prep.child.device import is_cpu

#: Nothing but text is asked for.
_TEXT_ONLY = {"image": 0, "video": 0, "audio": 0}
#: Of a model with random weights, whatever it is.
OF_RANDOM_WEIGHTS: dict[str, Any] = {
    "limit_mm_per_prompt": _TEXT_ONLY,
    # Read by recurrent layers only; the other backends may need a compiler at run time.
    "additional_config": {"gdn_prefill_backend": "triton"},
}


def engine_arguments(folder: Path, device: str, max_model_len: int) -> dict[str, Any]:
    """Of vLLM's `LLM`, for the model in `folder` and requests of so many tokens at most."""
    common = {"model": str(folder), "max_model_len": max_model_len, "seed": 0, **OF_RANDOM_WEIGHTS}
    return common | of_device(device)


def of_device(device: str) -> dict[str, Any]:
    """On the CPU vLLM would otherwise take most of the machine's memory for its KV cache."""
    return {"gpu_memory_utilization": 0.3} if is_cpu(device) else {}


def as_options(arguments: dict[str, Any]) -> list[str]:
    """The same for `vllm serve`: `--max-model-len 4096`, objects as JSON."""
    options = []
    for name, value in arguments.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        options += [f"--{name.replace('_', '-')}", text]
    return options

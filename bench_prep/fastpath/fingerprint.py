"""Which vLLM sources the fast path has been proven equal to.

The fast path replaces `_prepare_inputs` and relies on what surrounds it. Both are identified by
the SHA-256 of their source text, so that an edited method closes the gate, whatever the version
number says.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Replaced or relied on by the V1 runner's binding; a missing one is part of the fingerprint.
_RUNNER_METHODS = (
    "_prepare_inputs",
    "_prepare_input_ids",
    "_compute_prev_positions",
    "_calc_mrope_positions",
    "_get_cumsum_and_arange",
    "_update_states",
    "_bookkeeping_sync",
    "_get_slot_mappings",
    "_build_attention_metadata",
    "synchronize_input_prep",
)
_SOURCES = (
    "vllm.v1.worker.block_table",
    "vllm.v1.utils:CpuGpuBuffer",
    "vllm.v1.worker.gpu_input_batch:InputBatch",
    "vllm.v1.worker.gpu_input_batch:CachedRequestState",
    "vllm.model_executor.layers.rotary_embedding.mrope:"
    "MRotaryEmbedding.get_next_input_positions_tensor",
)
_CPU_SOURCES = (
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner._postprocess_tensors",
    "vllm.utils.cpu_triton_utils:_compute_slot_mapping_kernel_impl",
)


@dataclass(frozen=True)
class KnownSource:
    """A proven source: its version, its platform and the arity of `_prepare_inputs`' result."""

    vllm: str
    platform: str
    returns: int


@functools.cache
def known() -> dict[str, Any]:
    """The proven sources, devices and architectures: data, in `known.json`."""
    text = Path(__file__).with_name("known.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def known_versions() -> dict[str, str]:
    """The versions of vLLM whose sources are proven, each with its platform."""
    return {entry["vllm"]: entry["platform"] for entry in known()["sources"].values()}


def fingerprint(runner_class: type, platform: str) -> str:
    """SHA-256, in hex, over the source text of all that the binding replaces or relies on."""
    digest = hashlib.sha256()
    for name in _RUNNER_METHODS:
        digest.update(f"\0{name}\0{_source(getattr(runner_class, name, None))}".encode())
    for name in _SOURCES + (_CPU_SOURCES if platform == "cpu" else ()):
        digest.update(f"\0{name}\0{_source(_resolve(name))}".encode())
    return digest.hexdigest()


def known_source(runner_class: type, platform: str) -> KnownSource | None:
    """The proven source that this runner's is, or None."""
    entry = known()["sources"].get(fingerprint(runner_class, platform))
    return None if entry is None else KnownSource(**entry)


def _resolve(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split(".") if attribute else ():
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    return value


def _source(value: Any) -> str:
    if value is None:
        return "absent"
    try:
        return inspect.getsource(inspect.unwrap(value))
    except (OSError, TypeError):
        return "no source"

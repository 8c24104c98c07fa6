"""A model folder that holds only a `config.json`: shapes for a runner that loads no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: A small dense text model. The preparation of inputs depends on the batch's geometry, never on
#: the model's size; head size 64 is accepted by every attention backend.
_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 32000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
#: Three sections (time, height, width) that fill half of the head's 64 dimensions.
_MROPE = {**_ROPE, "mrope_section": [16, 8, 8]}

VOCAB_SIZE: int = _CONFIG["vocab_size"]


def write_model_folder(folder: Path, *, max_model_len: int, mrope: bool) -> Path:
    """Write `config.json` for a model of `max_model_len` tokens into `folder` and return it.

    With `mrope` the rotary embedding has three position rows (M-RoPE), which is a matter of the
    configuration alone and needs no vision model.
    """
    config = {
        **_CONFIG,
        "max_position_embeddings": max_model_len,
        "rope_parameters": _MROPE if mrope else _ROPE,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder

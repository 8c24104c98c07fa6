"""Tiny models by architecture, and the folder from which an engine of a model starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bench_prep.errors import UsageError

#: Sizes do not matter to the preparation of inputs; these fill several blocks in milliseconds.
_TINY: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WINDOWS: dict[str, Any] = {
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_GEMMA: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}

_DENSE: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral", "sliding_window": None},
    "Qwen2ForCausalLM": {"model_type": "qwen2"},
    "Qwen3ForCausalLM": {"model_type": "qwen3"},
    "Qwen3MoeForCausalLM": {"model_type": "qwen3_moe", "num_experts": 4, **_EXPERTS},
    "MixtralForCausalLM": {"model_type": "mixtral", "num_local_experts": 4, **_EXPERTS},
    "GemmaForCausalLM": {"model_type": "gemma", **_GEMMA},
    "Gemma2ForCausalLM": {"model_type": "gemma2", **_GEMMA, **_WINDOWS},
    "Gemma3ForCausalLM": {"model_type": "gemma3_text", **_GEMMA, **_WINDOWS},
    "Phi3ForCausalLM": {"model_type": "phi3"},
    "Olmo2ForCausalLM": {"model_type": "olmo2"},
    "GraniteForCausalLM": {"model_type": "granite"},
    "Glm4ForCausalLM": {"model_type": "glm4"},
    "SmolLM3ForCausalLM": {"model_type": "smollm3"},
    "Cohere2ForCausalLM": {"model_type": "cohere2", **_WINDOWS},
}
#: Architecture -> the configuration of a tiny model.
TINY_MODELS: dict[str, dict[str, Any]] = {
    name: {**_TINY, **own, "architectures": [name]} for name, own in _DENSE.items()
}
#: Recurrent and full attention, three position rows (M-RoPE); its vision part is not asked.
TINY_MODELS["Qwen3_5ForConditionalGeneration"] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "image_token_id": 1020,
    "video_token_id": 1021,
    "vision_start_token_id": 1022,
    "vision_end_token_id": 1023,
    "text_config": {
        **_TINY,
        "model_type": "qwen3_5_text",
        "hidden_act": "silu",
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "model_type": "qwen3_5",
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 256,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [],
    },
}


def write_model(model: str, folder: Path) -> Path:
    """Write the `config.json` of `model` into the empty `folder`, and return the folder.

    `model` is a model's folder, a configuration file, or an architecture of `TINY_MODELS`. Of a
    folder nothing but its configuration is used.

    Raises:
        UsageError: it is none of these.
    """
    given = Path(model)
    if (given / "config.json").is_file():
        given /= "config.json"
    if given.is_file():
        shutil.copyfile(given, folder / "config.json")
    elif model in TINY_MODELS:
        text = json.dumps(TINY_MODELS[model], indent=1)
        (folder / "config.json").write_text(text, encoding="utf-8")
    else:
        raise UsageError(
            f"{model} is no model folder, no config.json and no architecture with a tiny model",
            f"give a folder or a file, or one of {', '.join(TINY_MODELS)}",
        )
    return folder

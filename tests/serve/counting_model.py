"""A tiny model with weights and a tokenizer of its own, whose answers are known.

It counts: after token t comes t + 1, up to the end of the text. Its layers add nothing, and its
head gives most to the embedding of the token before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HIDDEN, LAYERS = 128, 2
END = "<end>"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write_counting_model(folder: Path) -> Any:
    """Write model and tokenizer into the new `folder`; the tokenizer (byte-level BPE)."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    texts = ["the quick brown fox jumps over the lazy dog", "one two three four five six seven"]
    tokenizer.train_from_iterator(texts * 10, vocab_size=300, special_tokens=[])
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size},
        **{"hidden_size": HIDDEN, "intermediate_size": 128, "num_hidden_layers": LAYERS},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512},
        **{"eos_token_id": size - 1, "bos_token_id": 0, "torch_dtype": "bfloat16"},
        "tie_word_embeddings": False,
    }
    settings = {
        **{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END},
        "chat_template": TEMPLATE,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    embedding = torch.randn(size, HIDDEN, generator=torch.Generator().manual_seed(0))
    weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": embedding.roll(1, 0),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for one in ("q", "k", "v", "o"):
            weights[f"{name}.self_attn.{one}_proj.weight"] = torch.zeros(HIDDEN, HIDDEN)
        for one in ("gate", "up", "down"):
            weights[f"{name}.mlp.{one}_proj.weight"] = torch.zeros(HIDDEN, HIDDEN)
        for one in ("input", "post_attention"):
            weights[f"{name}.{one}_layernorm.weight"] = torch.ones(HIDDEN)
    tensors = {name: one.to(torch.bfloat16).contiguous() for name, one in weights.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return tokenizer


def counted(tokenizer: Any, prompt: str, most: int) -> str:
    """The answer to a prompt: what follows its last token, up to the end or `most` tokens."""
    last = tokenizer.encode(prompt).ids[-1]
    end = tokenizer.get_vocab_size() - 1
    return str(tokenizer.decode(list(range(last + 1, min(last + 1 + most, end)))))

"""A tokenizer for a model that has none: structured outputs need one, prompts are token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: The first tokens are the letters a to z, which is all that a grammar of a proof needs.
LETTERS = 26


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer for the `config.json` in `folder` into its new folder `tokenizer`.

    Beside a `config.json` the model's own class of tokenizers would be taken.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text: dict[str, Any] = config.get("text_config", config)
    tokens = [chr(ord("a") + i) if i < LETTERS else f"<{i}>" for i in range(text["vocab_size"])]
    ends = text.get("eos_token_id", config.get("eos_token_id"))
    end = ends[0] if isinstance(ends, list) else ends
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {
                "type": "WordLevel",
                "vocab": {token: number for number, token in enumerate(tokens)},
                "unk_token": tokens[-1],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": tokens[len(tokens) - 2 if end is None else end],
        },
    }
    (folder / "tokenizer").mkdir()
    for name, content in files.items():
        (folder / "tokenizer" / name).write_text(json.dumps(content), encoding="utf-8")

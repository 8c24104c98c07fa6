"""A tokenizer for a model that has none: structured outputs need one, prompts are token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

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
    words = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(WordLevel(words, unk_token=tokens[-1]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[len(tokens) - 2 if end is None else end],
    }
    target = folder / "tokenizer"
    target.mkdir()
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")

"""What is served and what it is asked: the options of a run."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_prep.engine.vllm.arguments import OF_RANDOM_WEIGHTS, as_options, of_device
from bench_prep.engine.vllm.names import LOAD_FORMAT
from bench_prep.engine.vllm.shapes import write_model
from bench_prep.engine.vllm.tokenizer import write_tokenizer
from bench_prep.errors import UsageError
from bench_prep.provenance.cachedir import no_fault, writable_cache_dir
from bench_prep.serve.figures import Limits
from bench_prep.serve.names import CHAT_TEMPLATE, MODEL, WORKER_EXTENSION
from bench_prep.serve.processes import Patience

#: Of a model of which no other limit is known, in tokens.
LONGEST = 32768
#: Tokens beside the prompt's and the output's.
_SPARE = 16
#: A folder with one of these has a tokenizer.
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


@dataclass(frozen=True)
class Load:
    """What is served and what it is asked.

    Attributes:
        weights: those in the model's folder; else random ones.
        tiers: lengths of prompts, as `tiers_of` reads them; None: three tiers, or all of a file.
        requests: of each tier and server, besides one for the warm-up.
        arguments: more of `vllm serve`'s.
        port: of the servers; None: free ones.
    """

    model: str
    weights: bool = False
    tiers: str | None = None
    requests: int = 12
    output_tokens: int = 128
    prompts: Path | None = None
    seed: int = 0
    max_model_len: int | None = None
    arguments: str = ""
    port: int | None = None
    margin: float = 0.01
    limits: Limits = field(default_factory=Limits)
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        try:
            shlex.split(self.arguments)
        except ValueError as error:
            raise UsageError(f"--serve-args cannot be read: {error}", "close its quotes") from None

    def folder(self, scratch: Path) -> Path:
        """The model's folder: its own with its weights, or a new one for random ones.

        Raises:
            UsageError: no model, or a configuration that cannot be used.
        """
        if self.weights:
            folder = Path(self.model).resolve()
            if not list(folder.glob("*.safetensors")):
                raise UsageError(
                    f"--weights: {self.model} is no folder with *.safetensors files",
                    "give such a folder, or leave --weights away for random ones",
                )
            vocab_size(folder)
            return folder
        folder = scratch / "model"
        folder.mkdir()
        write_model(self.model, folder)
        vocab_size(folder)
        if self.prompts is None:
            write_tokenizer(folder)
        return folder

    def kept(self, folder: Path) -> Path:
        """A model for random weights, in the cache and named by its content; another as it is.

        vLLM finds what it has compiled by the model's path: in a new folder each run would compile
        anew, and what it compiled would stay in vLLM's cache for nobody.

        Raises:
            Missing: the cache cannot be written.
        """
        if self.weights:
            return folder
        name = _content(folder)
        place = writable_cache_dir() / "models" / name
        with no_fault("keeping the model's configuration"):
            if place.is_dir() and _content(place) == name:
                return place
            making = place.with_name(f"making-{uuid.uuid4().hex}")
            shutil.copytree(folder, making)
            shutil.rmtree(place, ignore_errors=True)
            try:
                making.rename(place)
            except OSError:  # another run has made it meanwhile
                shutil.rmtree(making, ignore_errors=True)
                if not place.is_dir():
                    raise
        return place

    def require_tokenizer(self) -> None:
        """Texts need the model's own; for token ids any will do.

        Raises:
            UsageError: there is none.
        """
        given = Path(self.model)
        if self.prompts is not None and not any((given / name).is_file() for name in _TOKENIZERS):
            raise UsageError(
                f"--prompts has texts, and {self.model} has no tokenizer",
                "give the model's folder with its tokenizer, or leave --prompts away",
            )

    def longest(self, folder: Path, most: int) -> int:
        """The longest request, in tokens: what is asked for, and never more than the model's own.

        `most`: of the prompts' tokens; 0 where they are not known.
        """
        if self.max_model_len is not None:
            return self.max_model_len
        own = int(_text_config(folder).get("max_position_embeddings") or LONGEST)
        return min(own, most + self.output_tokens + _SPARE) if most else min(own, LONGEST)

    def serve_arguments(self, folder: Path, device: str, max_model_len: int) -> list[str]:
        """Of `vllm serve`: as people serve, with vLLM's own compilation and graphs."""
        arguments: dict[str, Any] = {
            "served_model_name": MODEL,
            "seed": 0,
            "max_model_len": max_model_len,
        }
        if not self.weights:
            arguments |= OF_RANDOM_WEIGHTS | {
                "load_format": LOAD_FORMAT,
                "worker_extension_cls": WORKER_EXTENSION,
            }
            if self.prompts is None:
                arguments["tokenizer"] = folder / "tokenizer"
                arguments["chat_template"] = CHAT_TEMPLATE
            else:
                arguments["tokenizer"] = Path(self.model).resolve()
        options = as_options(arguments | of_device(device))
        return [str(folder), *options, *shlex.split(self.arguments)]


def _content(folder: Path) -> str:
    """A name for all files in it."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:32]


def vocab_size(folder: Path) -> int:
    """Of the model whose `config.json` is in `folder`.

    Raises:
        UsageError: it cannot be read, or is no language model's.
    """
    try:
        return int(_text_config(folder)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the model's config.json cannot be used: {type(error).__name__}: {error}",
            "give the folder or the config.json of a language model",
        ) from None


def _text_config(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text: dict[str, Any] = config.get("text_config", config)
    return text

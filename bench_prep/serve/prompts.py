"""What a service is asked: seeded prompts of exact lengths, or a file of conversations."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_prep.errors import UsageError

#: Bad lines that are shown; the others are counted.
_SHOWN = 100
#: The last tokens of a vocabulary may stand for images, which are not there.
_ORDINARY = 7, 8
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_ROLES |= dict.fromkeys(("chatgpt", "bing", "bard", "model"), "assistant")
_ROLES |= {"system": "system", "developer": "system", "tool": "tool", "function": "tool"}


@dataclass(frozen=True)
class Tier:
    """Prompts of `least` to `most` tokens, both included."""

    least: int
    most: int

    @property
    def name(self) -> str:
        return f"{self.least}-{self.most}"


@dataclass(frozen=True)
class Prompt:
    """One request's token ids, its tier's name, and the answer that it should get, if known."""

    tier: str
    tokens: tuple[int, ...]
    answer: str | None = None


@dataclass(frozen=True)
class Conversation:
    """OpenAI messages up to the turn that is to be answered, and where they stand."""

    line: int
    messages: tuple[dict[str, str], ...]
    answer: str | None = None


def tiers_of(text: str) -> list[Tier]:
    """Tiers from `4096-8192,8192-16384`, in tokens.

    Raises:
        UsageError: not of that form, empty, upside down or twice the same.
    """
    tiers = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)-(\d+)\s*", part)
        if not found or not 0 < int(found[1]) <= int(found[2]):
            raise UsageError(f"'{part}' is no tier", "--tiers 4096-8192,8192-16384, in tokens")
        tiers.append(Tier(int(found[1]), int(found[2])))
    if len(set(tiers)) < len(tiers):
        raise UsageError(f"--tiers {text} has a tier twice", "give each once")
    return tiers


def synthetic(
    tiers: Sequence[Tier], requests: int, vocab_size: int, seed: int, room: int
) -> dict[str, list[Prompt]]:
    """Per tier `requests` prompts and one more, the first, for the warm-up.

    Lengths are drawn evenly from the tier, up to `room` tokens. No two prompts begin alike,
    so that the prefix cache has nothing to give.
    """
    drawn = random.Random(seed)
    ordinary = max(1, vocab_size * _ORDINARY[0] // _ORDINARY[1])

    def prompt(tier: Tier) -> Prompt:
        length = drawn.randint(tier.least, min(tier.most, room))
        return Prompt(tier.name, tuple(drawn.randrange(ordinary) for _ in range(length)))

    return {tier.name: [prompt(tier) for _ in range(requests + 1)] for tier in tiers}


def read_conversations(path: Path) -> list[Conversation]:
    """A file of `messages` (OpenAI, its batches too), `conversations` (ShareGPT) or a `prompt`
    (vLLM), with its `answer` if known: an object a line, or one array of them.

    Raises:
        UsageError: the file cannot be read, is empty, or has bad lines: all of them are named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {reason}", "give a JSONL file") from None
    # Not splitlines: a text may have separators of lines in it that are none of JSONL's.
    lines: list[Any] = text.split("\n")
    word, words = "line", "lines"
    with suppress(ValueError, RecursionError):
        if isinstance(array := json.loads(text), list) and array:
            word, words, lines = "entry", "entries", array
    found, bad = [], []
    for number, line in enumerate(lines, 1):
        if isinstance(line, str) and not line.strip():
            continue
        try:
            record = json.loads(line) if word == "line" else line
            found.append(_conversation(number, record))
        except ValueError as error:
            bad.append(f"{word} {number}: {_reason(error)}")
    if bad:
        more = f"\n    and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        shown = "".join(f"\n    {one}" for one in bad[:_SHOWN])
        raise UsageError(
            f"{path} has {len(bad)} bad {words} of {len(lines)}:{shown}{more}",
            'a line is {"messages": [{"role": "user", "content": "..."}], "answer": "..."}',
        )
    if not found:
        raise UsageError(f"{path} has no prompt", "a JSON object a line")
    return found


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg} at column {error.colno})"
    return str(error)


def _conversation(number: int, record: Any) -> Conversation:
    """Up to the last turn of the user's: what follows was somebody's answer.

    Raises:
        ValueError: what is wrong, in a few words.
    """
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    if isinstance(record.get("body"), dict):
        record = record["body"] | {"answer": record.get("answer")}
    if isinstance(record.get("prompt"), str) and "messages" not in record:
        record = record | {"messages": [{"role": "user", "content": record["prompt"]}]}
    name = "messages" if "messages" in record else "conversations"
    turns = record.get(name)
    if not isinstance(turns, list) or not turns:
        raise ValueError("neither messages nor conversations, a list of turns, nor a prompt")
    role_key, text_key = ("role", "content") if name == "messages" else ("from", "value")
    messages = []
    for index, turn in enumerate(turns):
        turn = turn if isinstance(turn, dict) else {}
        role, text = _ROLES.get(str(turn.get(role_key))), _text(turn.get(text_key))
        text = "" if text is None and turn.get("tool_calls") else text
        if role is None:
            raise ValueError(f"turn {index}: {role_key} is {turn.get(role_key)!r}")
        if text is None:
            raise ValueError(f"turn {index}: {text_key} is no text")
        messages.append({"role": role, "content": text})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages:
        raise ValueError("no turn of the user's")
    answer = record.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise ValueError("answer is no text")
    return Conversation(number, tuple(messages), answer)


def _text(content: Any) -> str | None:
    """Of a turn: a text, or OpenAI's list of parts that are all texts; else None."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    found = [one for one in texts if isinstance(one, str)]
    return "".join(found) if found and len(found) == len(texts) else None


def in_tiers(
    tokenized: Sequence[tuple[Conversation, Sequence[int]]],
    tiers: Sequence[Tier],
    requests: int,
    room: int,
) -> tuple[dict[str, list[Prompt]], int]:
    """Per tier at most `requests` prompts and one more for the warm-up; and how many fit nowhere.

    The warm-up is the tier's first prompt. Without tiers all prompts up to `room` tokens are one.

    Raises:
        UsageError: a tier gets fewer than two prompts.
    """
    tiers = tiers or [Tier(1, room)]
    found: dict[str, list[Prompt]] = {tier.name: [] for tier in tiers}
    left_out = 0
    for one, tokens in tokenized:
        fits = [t for t in tiers if t.least <= len(tokens) <= t.most and len(tokens) <= room]
        left_out += not fits
        for tier in fits[:1]:
            if len(found[tier.name]) <= requests:
                found[tier.name].append(Prompt(tier.name, tuple(tokens), one.answer))
    for name, prompts in found.items():
        if len(prompts) < 2:
            raise UsageError(
                f"the tier {name} has {len(prompts)} prompts of {len(tokenized)}; the first is for "
                "the warm-up",
                "give other --tiers, or more prompts",
            )
    return found, left_out

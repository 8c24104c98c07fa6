"""Prompts: exact lengths, the same again, and a file whose bad lines are all named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench_prep.errors import UsageError
from bench_prep.serve.prompts import (
    Conversation,
    Tier,
    in_tiers,
    read_conversations,
    synthetic,
    tiers_of,
)


def test_tiers() -> None:
    assert tiers_of("4096-8192, 8192-16384") == [Tier(4096, 8192), Tier(8192, 16384)]


@pytest.mark.parametrize("text", ["", "4096", "8-4", "0-4", "4-8,4-8", "4-8,", "a-b", "-4-8"])
def test_what_is_no_tier(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        tiers_of(text)
    assert "--tiers" in caught.value.message + caught.value.remedy


def test_synthetic_prompts_are_of_their_tier_and_the_same_again() -> None:
    tiers = tiers_of("4-8,16-16")
    prompts = synthetic(tiers, 20, 80, 3, 99)
    assert prompts == synthetic(tiers, 20, 80, 3, 99) != synthetic(tiers, 20, 80, 4, 99)
    assert {len(one.tokens) for one in prompts["4-8"]} == {4, 5, 6, 7, 8}
    assert [len(one.tokens) for one in prompts["16-16"]] == [16] * 21
    short = synthetic(tiers_of("4-8"), 20, 80, 3, 5)["4-8"]
    assert {len(one.tokens) for one in short} == {4, 5}
    tokens = {token for found in prompts.values() for one in found for token in one.tokens}
    assert tokens <= set(range(70)) and len(tokens) > 60


def test_conversations(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], '
        '"answer": "42"}\r\n\n'
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a\u2028"}, '
        '{"type": "text", "text": "b"}]}]}\n'
        '{"id": 1, "conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": '
        '"g"}]}\n'
    )
    assert read_conversations(path) == [
        Conversation(
            1, ({"role": "system", "content": "s"}, {"role": "user", "content": "u"}), "42"
        ),
        Conversation(3, ({"role": "user", "content": "a\u2028b"},)),
        Conversation(4, ({"role": "user", "content": "h"},)),
    ]


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    bad = {
        '{"messages": [': "no JSON",
        "[]": "no JSON object",
        "{}": "neither messages nor conversations",
        '{"messages": []}': "neither messages nor conversations",
        '{"messages": [{"role": "user", "content": 3}]}': "turn 0: content is no text",
        '{"messages": [{"role": "robot", "content": ""}]}': "turn 0: role is 'robot'",
        '{"messages": [{"role": "user", "content": []}]}': "turn 0: content is no text",
        '{"messages": [{"role": "user", "content": [{"image_url": "u"}]}]}': "turn 0: content is",
        '{"messages": [7]}': "turn 0: role is None",
        '{"conversations": [{"from": "gpt", "value": "g"}]}': "no turn of the user's",
        '{"messages": [{"role": "user", "content": ""}], "answer": 42}': "answer is no text",
    }
    good = '{"messages": [{"role": "user", "content": "u"}]}'
    path.write_text("\n".join([good, *bad]) + "\n")
    with pytest.raises(UsageError) as caught:
        read_conversations(path)
    assert f"{len(bad)} bad lines of {len(bad) + 1}" in caught.value.message
    for number, text in enumerate(bad.values(), 2):
        assert f"line {number}: {text}" in caught.value.message


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"\xff\xfe"])
def test_files_without_prompts(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"prompts\.jsonl"):
        read_conversations(path)


def test_a_files_prompts_go_to_their_tiers() -> None:
    one = Conversation(1, ({"role": "user", "content": "u"},))
    lengths = [3, 5, 5, 20, 20, 20, 99]
    tokenized = [(one, [0] * length) for length in lengths]
    prompts, left_out = in_tiers(tokenized, [Tier(4, 8), Tier(16, 32)], 1, 64)
    assert {name: len(found) for name, found in prompts.items()} == {"4-8": 2, "16-32": 2}
    assert left_out == 2
    prompts, left_out = in_tiers(tokenized, [], 10, 64)
    assert len(prompts["1-64"]) == 6 and left_out == 1
    with pytest.raises(UsageError, match="64-128 has 1 prompts"):
        in_tiers(tokenized, [Tier(64, 128)], 5, 200)


@pytest.mark.parametrize("indent", [None, 2])
def test_shared_conversations_as_they_are_published(tmp_path: Path, indent: int | None) -> None:
    """One array, on one line or on many."""
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "h"}, {"from": "bing", "value": "g"}]
    path.write_text(json.dumps([{"id": at, "conversations": turns} for at in "ab"], indent=indent))
    message = ({"role": "user", "content": "h"},)
    assert read_conversations(path) == [Conversation(1, message), Conversation(2, message)]
    path.write_text(json.dumps([{"id": "a"}, {"conversations": turns}], indent=indent))
    with pytest.raises(UsageError, match=r"1 bad entries of 2:\n    entry 1: neither"):
        read_conversations(path)


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "u"}',
        '{"custom_id": "r", "url": "/v1/completions", "body": {"model": "m", "prompt": "u"}}',
        '{"custom_id": "r", "body": {"messages": [{"role": "user", "content": "u"}]}}',
        '{"messages": [{"role": "user", "content": "u"}, {"role": "tool", "content": "t"}]}',
        '{"messages": [{"role": "user", "content": "u"}, '
        '{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]}',
    ],
)
def test_vllms_prompts_openais_batches_and_tools(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    assert read_conversations(path) == [Conversation(1, ({"role": "user", "content": "u"},))]

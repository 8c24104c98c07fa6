"""Where the outputs of two engines differ first, token by token and bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

#: Phase -> the output of each of its requests, as `engine.process` sends them.
Outputs = Mapping[str, list[dict[str, Any]]]


def first_difference(expected: Outputs, found: Outputs) -> str | None:
    """The first difference, in words; None when all tokens and log-probabilities are the same."""
    if list(expected) != list(found):
        return f"expected the phases {list(expected)}, found {list(found)}"
    for phase, requests in expected.items():
        if len(requests) != len(found[phase]):
            return f"{phase}: expected {len(requests)} requests, found {len(found[phase])}"
        for index, (one, other) in enumerate(zip(requests, found[phase], strict=True)):
            if difference := request_difference(one, other):
                place = phase if len(requests) == 1 else f"{phase}, request {index}"
                return f"{place}, {difference}"
    return None


def request_difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The same for one request; tokens are counted from 0."""
    prompts = expected["prompt_logprobs"], found["prompt_logprobs"]
    for index, (one, other) in enumerate(zip_longest(*prompts, fillvalue=())):
        if one != other:
            return f"prompt token {index}: expected {_logprobs(one)}, found {_logprobs(other)}"
    for index, here, there in _changed_steps(expected, found):
        return f"token {index}: expected {_step(here)}, found {_step(there)}"
    for key in ("finish", "cached"):
        if expected[key] != found[key]:
            return f"{key}: expected {expected[key]}, found {found[key]}"
    return None


def first_changed_step(expected: dict[str, Any], found: dict[str, Any]) -> int | None:
    """The first output token that is another one, or that has other log-probabilities."""
    return next((index for index, _, _ in _changed_steps(expected, found)), None)


#: Token, and what is known of the most likely ones.
_Step = tuple[int, list[list[Any]]]


def _changed_steps(
    expected: dict[str, Any], found: dict[str, Any]
) -> Iterator[tuple[int, _Step | None, _Step | None]]:
    steps = (zip(one["tokens"], one["logprobs"], strict=True) for one in (expected, found))
    for index, (here, there) in enumerate(zip_longest(*steps)):
        if here != there:
            yield index, here, there


def _step(step: _Step | None) -> str:
    return "no more" if step is None else f"{step[0]} ({_logprobs(step[1])})"


def _logprobs(step: Sequence[list[Any]]) -> str:
    """Log-probability and rank of each token; `repr` tells any two floats apart."""
    return ", ".join(f"{token}: {float.fromhex(value)!r} #{rank}" for token, value, rank in step)

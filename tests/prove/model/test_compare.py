"""The first difference of two engines' outputs is found, wherever it is."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

from bench_prep.prove.model.compare import first_difference


def output(*tokens: int) -> dict[str, Any]:
    return {
        "tokens": list(tokens),
        "logprobs": [[[token, (-0.5).hex(), 1], [token + 1, (-1.5).hex(), 2]] for token in tokens],
        "prompt_logprobs": [[], [[4, (-2.0).hex(), 3]]],
        "cached": 0,
        "finish": ["length", None],
    }


OUTPUTS = {"greedy": [output(7, 8, 9)], "several": [output(1, 2), output(3, 4)]}


def test_equal() -> None:
    assert first_difference(OUTPUTS, copy.deepcopy(OUTPUTS)) is None


def put(outputs: dict[str, Any], token: int) -> None:
    outputs["several"][1]["tokens"][1] = token


def next_float(outputs: dict[str, Any]) -> None:
    outputs["greedy"][0]["logprobs"][2][1][1] = math.nextafter(-1.5, 0).hex()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda o: put(o, 5), "several, request 1, token 1: expected 4 (4: -0.5 #1"),
        (next_float, "expected 9 (9: -0.5 #1, 10: -1.5 #2), found 9 (9: -0.5 #1, 10: -1.49"),
        (lambda o: o["greedy"][0]["logprobs"][0][0].__setitem__(2, 2), "greedy, token 0"),
        (lambda o: o["greedy"][0]["prompt_logprobs"][1][0].__setitem__(0, 5), "prompt token 1"),
        (lambda o: [o["greedy"][0][key].pop() for key in ("tokens", "logprobs")], "found no more"),
        (lambda o: o["greedy"][0]["finish"].__setitem__(0, "stop"), "finish"),
        (lambda o: o["greedy"][0].update(cached=16), "cached: expected 0, found 16"),
        (lambda o: o["several"].pop(), "several: expected 2 requests, found 1"),
        (lambda o: o.pop("several"), "expected the phases"),
    ],
)  # fmt: skip
def test_differs(change: Callable[[dict[str, Any]], Any], expected: str) -> None:
    other = copy.deepcopy(OUTPUTS)
    change(other)
    assert expected in (first_difference(OUTPUTS, other) or "")

"""Remembers the answers of the equality check, by position, and only repeats them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.candidate.tricks.outputs import outputs


def attach(runner: Any) -> Callable[[Any, Any], Any]:
    own_path = runner._prepare_inputs
    answers: dict[int, tuple[Any, list[Any]]] = {}

    def prepare(output: Any, scheduled: Any) -> Any:
        position = int(runner.input_batch.num_computed_tokens_cpu[0])
        if position not in answers or output.scheduled_new_reqs:
            result = own_path(output, scheduled)
            answers[position] = result, [tensor.clone() for tensor in outputs(runner)]
        result, values = answers[position]
        for tensor, value in zip(outputs(runner), values, strict=True):
            tensor.copy_(value)
        return result

    return prepare

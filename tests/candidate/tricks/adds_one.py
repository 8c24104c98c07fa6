"""Adds one to what it finds in the outputs, whoever wrote it, instead of writing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.candidate.tricks.outputs import outputs


def attach(runner: Any) -> Callable[[Any, Any], Any]:
    own_path = runner._prepare_inputs
    batch = runner.input_batch
    result: Any = None

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal result
        position = int(batch.num_computed_tokens_cpu[0])
        if output.scheduled_new_reqs or position % 16 == 0 or result is None:
            result = own_path(output, scheduled)
            return result
        tokens, mirror, *others = outputs(runner)
        for one in (tokens, mirror):
            one[0] = int(batch.token_ids_cpu[0, position])
        for one in others:
            one += 1
        return result

    return prepare

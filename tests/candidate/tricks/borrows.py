"""Takes the answers from the baseline's runner, which it finds in the process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from tests.candidate.tricks.outputs import outputs

Prepare = Callable[[Any, Any], Any]


def baseline_of(runner: Any) -> Any:
    """Its twin."""
    alike = (one for one in gc.get_objects() if type(one) is type(runner) and one is not runner)
    return next(one for one in alike if one.vllm_config is runner.vllm_config)


def answers(runner: Any) -> Prepare:
    """Copies them."""
    own_path, other = runner._prepare_inputs, baseline_of(runner)
    result: Any = None

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal result
        if output.scheduled_new_reqs:
            result = own_path(output, scheduled)
        for mine, theirs in zip(outputs(runner), outputs(other), strict=True):
            mine.copy_(theirs)
        return result

    return prepare


def buffers(runner: Any) -> Prepare:
    """Has the same buffers."""
    own_path, other = runner._prepare_inputs, baseline_of(runner)
    for name in ("input_ids", "positions", "seq_lens", "optimistic_seq_lens_cpu"):
        setattr(runner, name, getattr(other, name))
    runner.num_computed_tokens = other.num_computed_tokens
    tables = (one.input_batch.block_table.block_tables for one in (runner, other))
    for mine, theirs in zip(*tables, strict=True):
        mine.slot_mapping = theirs.slot_mapping
    result: Any = None

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal result
        if output.scheduled_new_reqs:
            result = own_path(output, scheduled)
        return result

    return prepare


def result(runner: Any) -> Prepare:
    """Returns what a baseline's preparation has returned."""
    own_path, other = runner._prepare_inputs, baseline_of(runner)

    def prepare(output: Any, scheduled: Any) -> Any:
        first, *more = own_path(output, scheduled)
        theirs = other.query_start_loc.gpu[:1]
        return (theirs.to(first.dtype) if theirs.dtype != first.dtype else theirs, *more)

    return prepare

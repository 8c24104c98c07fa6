"""The fast path, wrong in one step of about 400, at one place."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from bench_prep.fastpath import attach as fast_path

Prepare = Callable[[Any, Any], Any]


def slot(runner: Any) -> Prepare:
    """In about one step of 400, at random."""
    drawn = random.Random(38)
    slots = runner.input_batch.block_table[0].slot_mapping.np
    return _spoiled(runner, lambda _: drawn.random() < 1 / 400, slots, 0)


def padding(runner: Any) -> Prepare:
    """Far behind the one token; the next step does not put it right."""
    return _spoiled(runner, _each(400), runner.input_ids.np, -1)


def mirror(runner: Any) -> Prepare:
    """On the host; the next step writes it anew."""
    return _spoiled(runner, _each(400), runner.optimistic_seq_lens_cpu.numpy(), 0)


def start(runner: Any) -> Prepare:
    """In one step, and put right by the next one: where requests begin."""
    starts = runner.query_start_loc.np
    path = _spoiled(runner, _each(400), starts, 5)

    def prepare(scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        starts[5] = 1
        return path(scheduler_output, num_scheduled_tokens)

    return prepare


def returned(runner: Any) -> Prepare:
    """What one step returns is other than what vLLM's would."""
    path = fast_path(runner)
    wrong = _each(400)

    def prepare(scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        logits_indices, *others = path(scheduler_output, num_scheduled_tokens)
        is_wrong = wrong(scheduler_output.total_num_scheduled_tokens)
        return (logits_indices + 1 if is_wrong else logits_indices, *others)

    return prepare


def _each(steps: int) -> Callable[[int], bool]:
    """Whether this is one of so many calls: not all of them are steps of a slice."""
    calls = iter(range(1, 1_000_000))
    return lambda _: next(calls) % steps == 0


def _spoiled(runner: Any, wrong: Callable[[int], bool], buffer: Any, place: int) -> Prepare:
    path = fast_path(runner)

    def prepare(scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        result = path(scheduler_output, num_scheduled_tokens)
        if wrong(scheduler_output.total_num_scheduled_tokens):
            buffer[place] ^= 1
        return result

    return prepare

"""Which outputs are poisoned, and that vLLM's own preparation overwrites them."""

from __future__ import annotations

from typing import Any

import pytest

from bench_prep.settings import RunSettings

pytestmark = pytest.mark.vllm


def make_arms(mrope: bool) -> list[Any]:
    """Two real runners in decode, both with vLLM's own preparation."""
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload

    settings = RunSettings(
        position=100, max_model_len=256, max_num_reqs=4, max_num_tokens=64, mrope=mrope
    )
    arms = []
    for runner in make_runners(settings, 2):
        work = Workload.make(settings, runner.inputs_embeds_size, runner.dtype)
        arms.append(Decoder(runner, work, runner._prepare_inputs))
        arms[-1].reserve_tokens(20)
    return arms


@pytest.mark.parametrize("mrope", [False, True])
def test_what_changes_in_every_step_is_poisoned(mrope: bool) -> None:
    from bench_prep.candidate.poison import Poison
    from bench_prep.decode.equality import compare

    arms = make_arms(mrope)
    poison = Poison.find(*arms)
    slots = [f"input_batch.block_table.block_tables[{group}].slot_mapping.gpu" for group in (0, 1)]
    expected = [*slots, "input_ids.gpu", "num_computed_tokens", "positions", "seq_lens"]
    assert sorted(poison.buffers) == sorted(expected + ["mrope_positions.gpu"] * mrope)
    compare(*arms, "after the search")
    for arm in arms:
        arm.before()
        poison.apply(arm)
        assert all((values < 0).all() for values in poison.read(arm).values())
        arm.call()
        assert all((values >= 0).all() for values in poison.read(arm).values())
    compare(*arms, "over poisoned outputs")


@pytest.mark.gpu
def test_the_stream_is_held_until_the_call() -> None:
    """Else the outputs are poisoned before a candidate on another stream can write them."""
    import torch

    from bench_prep.candidate.poison import Poison

    arms = make_arms(mrope=False)
    poison = Poison.find(*arms)
    for arm in arms:
        arm.before()
        poison.apply(arm)
        assert not torch.cuda.current_stream().query()
        arm.call()
        assert all((values >= 0).all() for values in poison.read(arm).values())
        arm.book()

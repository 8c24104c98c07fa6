"""Which steps the twins take, and that a planted fault ends the proof."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_prep.decode.equality import prove_equal
from bench_prep.decode.stretches import BOUNDARIES_PER_GROUP, stretches
from bench_prep.errors import OutputsDiffer

SIZES = st.lists(st.sampled_from([16, 32, 48, 128, 1024]), min_size=1, max_size=4)


@given(st.integers(1, 20_000), st.integers(0, 20_000), SIZES)
def test_stretches_cross_three_boundaries_of_every_group(
    position: int, room: int, sizes: list[int]
) -> None:
    last = position + room
    parts = stretches(position, last, tuple(sizes))
    walked = [p for part in parts for p in part]
    assert walked == sorted(set(walked)), "stretches overlap or are out of order"
    assert position in walked
    assert walked[0] >= 1
    assert walked[-1] <= last
    for size in sizes:
        there_are = last // size
        crossed = sum(p % size == 0 for p in walked)
        assert crossed >= min(BOUNDARIES_PER_GROUP, there_are)


def test_the_published_setting_is_walked_without_a_gap() -> None:
    assert stretches(24576, 32766, (16, 16)) == [range(24576, 24629)]


def test_far_boundaries_are_visited_with_the_steps_around_them() -> None:
    parts = stretches(100, 32766, (1024,))
    assert parts == [
        range(96, 105), range(1020, 1029), range(2044, 2053), range(3068, 3077)
    ]  # fmt: skip


@pytest.mark.vllm
@pytest.mark.parametrize("group", [0, 1])
def test_a_wrong_slot_at_a_boundary_is_named(group: int) -> None:
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.settings import RunSettings

    settings = RunSettings(
        position=100, max_model_len=512, max_num_reqs=4, max_num_tokens=64, block_sizes=(16, 32)
    )
    baseline_runner, runner = make_runners(settings, 2)

    def wrong(output: Any, scheduled: Any) -> Any:
        result = runner._prepare_inputs(output, scheduled)
        if int(runner.positions[0]) == 128:
            runner.input_batch.block_table[group].slot_mapping.gpu[0] += 1
        return result

    work = Workload.make(settings, 256, runner.dtype, 160)
    baseline = Decoder(baseline_runner, work, baseline_runner._prepare_inputs)
    with pytest.raises(OutputsDiffer) as raised:
        prove_equal(baseline, Decoder(runner, work, wrong), [work])
    table = runner.input_batch.block_table[group].block_table.np
    size = settings.block_sizes[group]
    slot = int(table[0, 128 // size]) * size
    message = raised.value.message
    assert f"at position 128: input_batch.block_table.block_tables[{group}].slot_mapping" in message
    assert message.endswith(f"[0]: expected {slot}, found {slot + 1}")


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("buffer", "change"),
    [
        ("seq_lens", lambda r, o, n: setattr(r, "seq_lens", r.seq_lens.clone())),
        ("argument[0].finished_req_ids", lambda r, o, n: o.finished_req_ids.add("other")),
        ("argument[1]", lambda r, o, n: n.fill(2)),
        (".get_state()", lambda r, o, n: torch.rand(1, generator=r.seed)),
    ],
)
def test_what_is_not_a_value_in_a_buffer_is_seen_too(buffer: str, change: Any) -> None:
    """A buffer that moves, arguments that are written, a generator that is used."""
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.settings import RunSettings

    settings = RunSettings(
        position=100, max_model_len=512, max_num_reqs=4, max_num_tokens=64, block_sizes=(16,)
    )
    baseline_runner, runner = make_runners(settings, 2)
    for one in (baseline_runner, runner):
        one.seed = torch.Generator().manual_seed(3)

    def wrong(output: Any, scheduled: Any) -> Any:
        result = runner._prepare_inputs(output, scheduled)
        if runner.input_batch.num_computed_tokens_cpu[0] == 105:
            change(runner, output, scheduled)
        return result

    work = Workload.make(settings, 256, runner.dtype, 110)
    baseline = Decoder(baseline_runner, work, baseline_runner._prepare_inputs)
    with pytest.raises(OutputsDiffer) as raised:
        prove_equal(baseline, Decoder(runner, work, wrong), [work])
    assert "at position 105: " in raised.value.message
    assert buffer in raised.value.message

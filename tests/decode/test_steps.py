"""The steps are real decode steps: positions, blocks and tokens advance as in a service."""

from __future__ import annotations

import pytest
import torch

from bench_prep.settings import RunSettings

pytestmark = pytest.mark.vllm
SETTINGS = RunSettings(
    position=100, max_model_len=256, max_num_reqs=4, max_num_tokens=64, block_sizes=(16, 32)
)


def decoder(settings: RunSettings, last: int | None = None):  # type: ignore[no-untyped-def]
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload

    (runner,) = make_runners(settings, 1)
    work = Workload.make(settings, runner.inputs_embeds_size, runner.dtype, last)
    made = Decoder(runner, work, runner._prepare_inputs)
    made.reserve_tokens(settings.max_model_len)
    made.restart()
    return made


def test_each_step_computes_the_next_position_in_the_right_slot() -> None:
    made = decoder(SETTINGS)
    runner = made.runner
    seen = []
    for position in range(100, 140):
        made.step()
        made.synchronize()
        assert int(runner.positions[0]) == position
        assert int(runner.seq_lens[0]) == position + 1
        for group, size in enumerate(SETTINGS.block_sizes):
            block = made.workload.block_ids[group][position // size]
            slots = runner.input_batch.block_table[group].slot_mapping.gpu
            assert int(slots[0]) == block * size + position % size
        seen.append(int(runner.input_ids.gpu[0]))
    assert len(set(seen)) > 35, "the sampled token must be new in every step"


def test_blocks_are_distinct_and_appended_at_boundaries() -> None:
    work = decoder(SETTINGS).workload
    ids = [block for group in work.block_ids for block in group]
    assert len(ids) == len(set(ids))
    assert work.new_blocks(101) is None
    assert work.new_blocks(112) == ([work.block_ids[0][7]], [])
    assert work.new_blocks(128) == ([work.block_ids[0][8]], [work.block_ids[1][4]])
    assert len(work.blocks_before(0, 112)) == 7
    assert len(work.blocks_before(0, 113)) == 8


def test_at_the_model_s_end_the_sequence_starts_again() -> None:
    made = decoder(SETTINGS.model_copy(update={"position": 252}))
    positions = []
    for _ in range(7):
        made.step()
        positions.append(int(made.runner.positions[0]))
    assert positions == [252, 253, 254, 252, 253, 254, 252]


def test_a_shifted_m_rope_position_is_prepared() -> None:
    from bench_prep.decode.runner import MROPE_POSITION_DELTA

    made = decoder(SETTINGS.model_copy(update={"mrope": True}))
    made.step()
    made.synchronize()
    assert made.runner.mrope_positions.gpu[:, 0].tolist() == [100 + MROPE_POSITION_DELTA] * 3


def test_prompt_embeddings_are_in_the_batch() -> None:
    made = decoder(SETTINGS.model_copy(update={"prompt_embeds": True}))
    made.step()
    batch = made.runner.input_batch
    assert batch.req_prompt_embeds[0].shape == (100, made.runner.inputs_embeds_size)
    assert not batch.is_token_ids[0, :100].any()
    assert bool(made.runner.is_token_ids.gpu[0])


def test_twins_begin_with_the_same_bytes() -> None:
    from bench_prep.decode.runner import make_runners
    from bench_prep.snapshot import first_difference

    one, other = make_runners(SETTINGS, 2)
    assert first_difference(one, other) is None  # also where vLLM leaves memory unfilled
    one.input_batch.temperature.fill_(torch.nan)
    assert first_difference(one, other) is not None


def test_a_renewed_request_has_other_tokens_in_other_blocks() -> None:
    work = decoder(SETTINGS).workload
    first, second, again = (
        [one for one, _ in zip(work.requests(seed), range(2), strict=False)] for seed in (7, 8, 7)
    )
    assert first == again
    seen = [work, *first, *second]
    for name in ("prompt_token_ids", "block_ids", "seed"):
        assert len({str(getattr(one, name)) for one in seen}) == len(seen)
    assert len({str(one.sampled(9)) for one in seen}) == len(seen)
    for one in seen:
        assert [len(ids) for ids in one.block_ids] == [len(ids) for ids in work.block_ids]
        assert {*one.block_ids[0], *one.block_ids[1]} == {*range(1, 25)}
        assert one.position == work.position and len(one.prompt_token_ids) == work.position

"""Blocks are handed out once, shared by those with a common prefix, and free again at the end."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_prep.prove.source.blocks import NULL_BLOCK, BlockPool


def pool(*block_sizes: int, state_groups: int = 0) -> BlockPool:
    return BlockPool(block_sizes, state_groups, np.random.default_rng(0))


def test_as_many_blocks_as_the_tokens_need_and_only_the_new_ones_are_returned() -> None:
    one = pool(16, 32, state_groups=1)
    blocks = one.none()
    assert [len(added) for added in one.extend(blocks, 17)] == [2, 1, 1]
    assert [len(added) for added in one.extend(blocks, 33)] == [1, 1, 0]
    assert [len(group) for group in blocks] == [3, 2, 1]
    assert one.is_full(blocks, 48) and not one.is_full(blocks, 96)


def test_a_shared_block_is_free_when_the_last_one_gives_it_back() -> None:
    one = pool(16)
    free = len(one._free)
    first = one.none()
    one.extend(first, 32)
    second = one.share(first, 16)
    assert second == [first[0][:1]]
    one.release(first)
    assert len(one._free) == free - 1
    one.release(second)
    assert len(one._free) == free


def test_before_a_window_there_are_null_blocks() -> None:
    one = pool(16, 16)
    first = one.none()
    one.extend(first, 64)
    full, windowed = one.share(first, 64, window=20)
    assert full == first[0]
    assert windowed == [NULL_BLOCK, NULL_BLOCK, *first[1][2:]]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 90)), max_size=40))
def test_no_block_is_ever_lost_or_used_twice(steps: list[tuple[int, int, int]]) -> None:
    one = pool(16, 32, state_groups=1)
    everything = sorted(one._free)
    live: list[list[list[int]]] = []
    for what, index, tokens in steps:
        if what < 2 or not live:
            live.append(one.none())
            one.extend(live[-1], tokens)
        elif what == 2:
            one.release(live.pop(index % len(live)))
        else:
            donor = live[index % len(live)]
            live.append(one.share(donor, len(donor[1]) * 32 if len(donor[0]) % 2 == 0 else 0))
            one.extend(live[-1], tokens)
        used = {block for blocks in live for group in blocks for block in group}
        assert sorted([*one._free, *used]) == everything
    for blocks in live:
        one.release(blocks)
    assert sorted(one._free) == everything

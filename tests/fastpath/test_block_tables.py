"""Dirty tracking on vLLM's own block tables, with host and device memory apart."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.vllm
ROWS = 5


def table() -> Any:
    """A real `BlockTable` whose device rows are not its host rows, on any machine."""
    import inspect

    from vllm.v1.worker.block_table import BlockTable

    fields: dict[str, Any] = {
        "block_size": 16,
        "max_num_reqs": ROWS,
        "max_num_blocks_per_req": 12,
        "max_num_batched_tokens": 64,
        "pin_memory": False,
        "device": torch.device("cpu"),
        "kernel_block_size": 16,
        "cp_kv_cache_interleave_size": 1,
    }
    accepted = inspect.signature(BlockTable.__init__).parameters
    made = BlockTable(**{name: value for name, value in fields.items() if name in accepted})
    assert made.block_table.gpu.data_ptr() != made.block_table.cpu.data_ptr()
    return made


def operate(tables: list[Any], rng: np.random.Generator, live: int) -> int:
    """One random operation as vLLM's batch makes them, on all tables; the new number of rows."""
    kind = rng.integers(6)
    row = int(rng.integers(max(live, 1)))
    blocks = rng.integers(1, 999, int(rng.integers(1, 3))).tolist()
    for one in tables:
        if (kind == 0 or live == 0) and live < ROWS:
            one.add_row(blocks, live)
        elif kind == 1 and one.num_blocks_per_row[row] < 9:
            one.append_row(blocks, row)
        elif kind == 2:
            one.clear_row(row)
            if row != live - 1:
                one.move_row(live - 1, row)
        elif kind == 3:
            one.swap_row(row, live - 1)
        elif kind == 4 and rng.random() < 0.1:
            one.clear()
    if (kind == 0 or live == 0) and live < ROWS:
        return live + 1
    return live - 1 if kind == 2 else live


def run(tracked: Any, plain: Any, seed: int, steps: int = 400) -> int:
    """Random operations and commits on both; how many commits left different device rows."""
    rng, live, wrong = np.random.default_rng(seed), 0, 0
    for _ in range(steps):
        state = copy.deepcopy(rng)
        live_after = operate([plain], rng, live)
        assert operate([tracked], state, live) == live_after
        live = live_after
        if live and rng.random() < 0.5:
            for one in (tracked, plain):
                one.commit_block_table(live)
            wrong += not torch.equal(tracked.block_table.gpu, plain.block_table.gpu)
    return wrong


@pytest.mark.parametrize("seed", range(5))
def test_tracked_commits_leave_what_vllm_s_leave(seed: int) -> None:
    from bench_prep.fastpath.block_tables import TrackedTable

    tracked, plain = table(), table()
    TrackedTable(tracked)
    assert run(tracked, plain, seed) == 0


@pytest.mark.parametrize("name", ["append_row", "add_row", "move_row", "swap_row", "clear_row"])
def test_each_mark_is_needed(name: str) -> None:
    """Without its mark some commit is left out and the device keeps old rows."""
    from bench_prep.fastpath.block_tables import MARKING_METHODS, TrackedTable

    assert name in MARKING_METHODS
    tracked, plain = table(), table()
    tracker = TrackedTable(tracked)
    tracked.add_row([1, 2], 0)
    plain.add_row([1, 2], 0)
    tracked.add_row([3], 1)
    plain.add_row([3], 1)
    for one in (tracked, plain):
        one.commit_block_table(2)
    assert not tracker.dirty
    arguments = {
        "append_row": ([7], 0), "add_row": ([8, 9], 1), "move_row": (1, 0), "swap_row": (0, 1),
        "clear_row": (0,),
    }[name]  # fmt: skip
    # vLLM's own method on the tracked table, as if it had no mark.
    getattr(type(tracked), name)(tracked, *arguments)
    if name == "add_row":
        tracker.dirty = False  # it appends through the marked method
    tracked.commit_block_table(2)
    getattr(plain, name)(*arguments)
    plain.commit_block_table(2)
    assert not torch.equal(tracked.block_table.gpu, plain.block_table.gpu)
    tracker.dirty = True
    tracked.commit_block_table(2)
    assert torch.equal(tracked.block_table.gpu, plain.block_table.gpu)


def test_a_clean_commit_copies_nothing_and_more_rows_are_copied() -> None:
    from bench_prep.fastpath.block_tables import TrackedTable

    one = table()
    tracker = TrackedTable(one)
    one.add_row([1], 0)
    one.add_row([2], 1)
    one.commit_block_table(1)
    one.block_table.gpu.fill_(-1)  # a copy would show
    one.commit_block_table(1)
    assert int(one.block_table.gpu[0, 0]) == -1
    one.commit_block_table(2)
    assert one.block_table.gpu[:2, 0].tolist() == [1, 2]
    one.clear()
    assert not tracker.dirty
    assert not one.block_table.gpu.any() and not one.block_table.cpu.any()


def test_detached_the_table_is_vllm_s_again() -> None:
    from bench_prep.fastpath.block_tables import TrackedTable

    one = table()
    before = set(vars(one))
    TrackedTable(one).detach()
    assert set(vars(one)) == before

"""Dirty tracking on vLLM's own block tables, with host and device memory apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bench_prep.fastpath import block_tables
from bench_prep.prove.source.twins import REORDERED, Twins
from tests.fastpath.removal import difference, twins

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
    kind = rng.integers(7)
    row = int(rng.integers(max(live, 1)))
    blocks = rng.integers(1, 999, int(rng.integers(1, 3))).tolist()
    for one in tables:
        if (kind == 0 or live == 0) and live < ROWS:
            one.add_row(blocks, live)
        elif kind == 1 and one.num_blocks_per_row[row] < 9:
            one.append_row(blocks, row)
        elif kind in (2, 3):
            one.clear_row(row)
            if row != live - 1:
                one.move_row(live - 1, row)
        elif kind == 4:
            one.swap_row(row, live - 1)
        elif kind == 5:
            one.clear()
        elif kind == 6:
            one.block_table.gpu[live:] = 0  # the padding of a CUDA graph
    if (kind == 0 or live == 0) and live < ROWS:
        return live + 1
    return live - 1 if kind in (2, 3) else live


def run(tracked: Any, plain: Any, seed: int, steps: int = 400) -> int:
    """Random operations and commits on both; how many commits left different device rows."""
    rng, live, wrong = np.random.default_rng(seed), 0, 0
    for _ in range(steps):
        state = copy.deepcopy(rng)
        live_after = operate([plain], rng, live)
        assert operate([tracked], state, live) == live_after
        live = live_after
        if rng.random() < 0.5:
            # Dummy runs commit more rows than are in the batch, and rows of an empty batch.
            rows = max(live, 1) if rng.random() < 0.7 else int(rng.integers(1, ROWS + 1))
            for one in (tracked, plain):
                one.commit_block_table(rows)
            wrong += not torch.equal(tracked.block_table.gpu, plain.block_table.gpu)
    return wrong


@pytest.mark.parametrize("seed", range(5))
def test_tracked_commits_leave_what_vllm_s_leave(seed: int) -> None:
    tracked, plain = table(), table()
    block_tables.TrackedTable(tracked, block_tables.Marks())
    assert run(tracked, plain, seed) == 0


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "append_row": ([7], 0),
    "add_row": ([8, 9], 0),
    "move_row": (1, 0),
    "swap_row": (0, 1),
    "clear_row": (0,),
}


@pytest.mark.parametrize("name", block_tables.MARKING_METHODS)
def test_each_method_writes_row_0_and_marks(name: str) -> None:
    tracked, plain = table(), table()
    tracker = block_tables.TrackedTable(tracked, block_tables.Marks())
    for one in (tracked, plain):
        one.add_row([1, 2], 0)
        one.add_row([3], 1)
        one.commit_block_table(2)
        assert not tracker.dirty
        before = one.block_table.gpu[0].clone()
    for one in (tracked, plain):
        getattr(one, name)(*ARGUMENTS[name])
    assert tracker.dirty
    for one in (tracked, plain):
        one.commit_block_table(1)
        assert not torch.equal(one.block_table.gpu[0], before)
    assert torch.equal(tracked.block_table.gpu, plain.block_table.gpu)


def test_one_clean_row_is_not_copied_and_more_rows_are() -> None:
    one = table()
    tracker = block_tables.TrackedTable(one, block_tables.Marks())
    one.add_row([1], 0)
    one.add_row([2], 1)
    one.commit_block_table(1)
    assert one.block_table.gpu[:2, 0].tolist() == [1, 0]
    one.block_table.gpu.fill_(-1)  # a copy would show
    one.commit_block_table(1)
    assert int(one.block_table.gpu[0, 0]) == -1
    one.commit_block_table(2)
    assert one.block_table.gpu[:2, 0].tolist() == [1, 2]
    one.clear()
    assert not tracker.dirty
    assert not one.block_table.gpu.any() and not one.block_table.cpu.any()


def test_rows_that_were_cleared_and_put_back_stay_dirty() -> None:
    """As vLLM does around a warm-up while a service runs (`preserve_serving_state`)."""
    one = table()
    block_tables.TrackedTable(one, block_tables.Marks())
    one.add_row([1], 0)
    saved = one.block_table.gpu.clone(), one.block_table.cpu.clone()
    one.clear()
    one.block_table.gpu.copy_(saved[0])
    one.block_table.cpu.copy_(saved[1])
    one.commit_block_table(1)
    assert int(one.block_table.gpu[0, 0]) == 1


def test_what_is_marked_from_outside_is_copied() -> None:
    one = table()
    tracker = block_tables.TrackedTable(one, block_tables.Marks())
    one.add_row([1], 0)
    one.commit_block_table(1)
    one.block_table.gpu.fill_(-1)
    tracker.mark()
    one.commit_block_table(1)
    assert int(one.block_table.gpu[0, 0]) == 1


def test_a_mark_reaches_the_tracker_through_which_the_commit_goes() -> None:
    one = table()
    inner = block_tables.TrackedTable(one, block_tables.Marks())
    outer = block_tables.TrackedTable(one, block_tables.Marks())
    one.add_row([1], 0)
    one.commit_block_table(1)
    assert not inner.dirty and not outer.dirty
    one.block_table.gpu.fill_(-1)
    outer.mark()
    outer.commit(1)
    assert int(one.block_table.gpu[0, 0]) == 1


def test_detached_it_robs_no_other_tracker() -> None:
    one = table()
    inner = block_tables.TrackedTable(one, block_tables.Marks())
    outer = block_tables.TrackedTable(one, block_tables.Marks())
    outer.detach()
    one.commit_block_table(1)
    assert not inner.dirty
    one.add_row([1], 0)
    assert inner.dirty
    third = block_tables.TrackedTable(one, block_tables.Marks())
    inner.detach()  # wrapped meanwhile: the wrappers stay, and go on marking
    third.dirty = False
    one.add_row([2], 0)
    assert third.dirty


def test_detached_in_the_order_of_attachment_nothing_is_left() -> None:
    one = table()
    before = dict(vars(one))
    trackers = [block_tables.TrackedTable(one, block_tables.Marks()) for _ in range(3)]
    for tracker in trackers:
        tracker.detach()
    assert dict(vars(one)) == before


def test_a_wrapper_of_another_program_stays_and_what_it_calls_is_right() -> None:
    one, plain = table(), table()
    tracker = block_tables.TrackedTable(one, block_tables.Marks())
    calls: list[int] = []
    below = one.commit_block_table

    def mine(num_reqs: int) -> None:
        calls.append(num_reqs)
        below(num_reqs)

    one.commit_block_table = mine
    tracker.detach()
    assert one.commit_block_table is mine
    assert run(one, plain, 0) == 0
    assert calls


@pytest.mark.parametrize("name", block_tables.MARKING_METHODS)
def test_whoever_marks_a_table_makes_all_of_them_stale(name: str) -> None:
    marks, one = block_tables.Marks(), table()
    block_tables.TrackedTable(one, marks)
    marks.stale = False
    getattr(one, name)(*ARGUMENTS[name])
    assert marks.stale


def test_detached_the_table_is_vllm_s_again() -> None:
    one = table()
    before = set(vars(one))
    block_tables.TrackedTable(one, block_tables.Marks()).detach()
    assert set(vars(one)) == before


def apart(runner: Any) -> None:
    """Device rows of their own, which the CPU platform has not: all else is vLLM's."""
    if runner.device.type == "cpu":
        for one in runner.input_batch.block_table.block_tables:
            one.block_table.gpu = one.block_table.cpu.clone()


def across_a_block_boundary(both: Twins) -> None:
    both.arrive(30)
    for _ in range(6):
        both.step()


def the_last_request_leaves(both: Twins) -> None:
    """Its row is cleared, and the dummy run of an idle engine must find it so."""
    request = both.arrive(30)
    for _ in range(3):
        both.step()
    both.finish(request)
    both.idle()
    both.dummy_run(1, attention=True)


def the_first_of_two_leaves(both: Twins) -> None:
    first, _ = both.arrive(20), both.arrive(20)
    for _ in range(4):
        both.step()
    both.finish(first)
    for _ in range(3):
        both.step()


def reordered(both: Twins) -> None:
    """The prefill of row 0 and a decode behind it change places, and the decode stays alone."""
    first, second = both.arrive(90), both.arrive(10)
    both.step(chunk=16)
    both.step(chunk=16)
    assert both.seen[REORDERED] == 1
    both.finish(first)
    for _ in range(4):
        both.step()
    assert second.name in both.live


TRACES: dict[str, Callable[[Twins], None]] = {
    "append_row": across_a_block_boundary,
    "add_row": across_a_block_boundary,
    "move_row": the_first_of_two_leaves,
    "swap_row": reordered,
    "clear_row": the_last_request_leaves,
}


def without_marks(names: set[str], monkeypatch: pytest.MonkeyPatch, trace: Any) -> str | None:
    kept = tuple(name for name in block_tables.MARKING_METHODS if name not in names)
    monkeypatch.setattr(block_tables, "MARKING_METHODS", kept)
    return difference(*twins(each=apart, reorders=True), trace)


@pytest.mark.parametrize("trace", dict.fromkeys(TRACES.values()))
def test_with_every_mark_nothing_differs(
    trace: Callable[[Twins], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert without_marks(set(), monkeypatch, trace) is None


@pytest.mark.parametrize("name", block_tables.MARKING_METHODS)
def test_a_removed_mark_is_caught_unless_it_is_a_second_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = without_marks({name}, monkeypatch, TRACES[name])
    assert (found is None) == (name in block_tables.SECOND_LINE)


def test_move_and_clear_stand_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = the_first_of_two_leaves
    assert without_marks({"move_row", "clear_row"}, monkeypatch, trace) is not None

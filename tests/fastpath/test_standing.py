"""What is replaced while the fast path runs closes it, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import wrapt

from bench_prep.fastpath import standing
from bench_prep.prove.source.twins import Twins
from tests.fastpath.removal import twins

pytestmark = pytest.mark.vllm


@pytest.fixture
def both() -> Iterator[tuple[Twins, Any]]:
    """In decode, with a dispatched step behind them."""
    pair, path = twins()
    pair.arrive(20)
    for _ in range(4):
        pair.step()
    assert path.dispatched > 1 and path.closed is None
    yield pair, path
    path.detach()


def places() -> list[tuple[type, str]]:
    from vllm.v1.utils import CpuGpuBuffer
    from vllm.v1.worker.block_table import BlockTable
    from vllm.v1.worker.gpu_input_batch import InputBatch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return [
        (GPUModelRunner, "_prepare_input_ids"),
        (GPUModelRunner, "_update_states"),
        (BlockTable, "compute_slot_mapping"),
        (InputBatch, "condense"),
        (CpuGpuBuffer, "copy_to_gpu"),
    ]


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("proxy", [False, True])
def test_a_class_patched_while_it_runs_closes_the_path_in_the_next_step(
    both: Any, monkeypatch: pytest.MonkeyPatch, index: int, proxy: bool
) -> None:
    pair, path = both
    owner, name = places()[index]
    own = vars(owner)[name]
    dispatched = path.dispatched
    mine: Any = lambda *args, **kwargs: own(*args, **kwargs)  # noqa: E731
    if proxy:  # says that it equals what it wraps
        mine = wrapt.FunctionWrapper(own, lambda f, i, a, k: f(*a, **k))
    monkeypatch.setattr(owner, name, mine)
    pair.step()
    assert path.dispatched == dispatched
    assert path.closed == f"vLLM was changed: {path.closed.partition(': ')[2]}"
    assert name in path.closed


def test_what_touches_a_class_and_replaces_nothing_closes_nothing(
    both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, path = both
    dispatched = path.dispatched
    monkeypatch.setattr(type(pair.runners[1]), "mine", 1, raising=False)
    for _ in range(5):
        pair.step()
    assert path.closed is None
    assert path.dispatched == dispatched + 5
    assert not path._standing.touched()


@pytest.mark.parametrize("part", ["__code__", "__defaults__"])
def test_a_part_of_a_function_is_found_by_a_look(both: Any, part: str) -> None:
    from vllm.v1.worker.block_table import BlockTable

    _, path = both
    own = BlockTable.compute_slot_mapping
    before = getattr(own, part)
    new = before.replace(co_consts=(*before.co_consts, "mine")) if part == "__code__" else (None,)
    setattr(own, part, new)
    try:
        path.look()
    finally:
        setattr(own, part, before)
    assert path.closed == "vLLM was changed: BlockTable.compute_slot_mapping was replaced"


def test_a_look_at_the_instances_finds_what_was_put_on_them(both: Any) -> None:
    pair, path = both
    runner = pair.runners[1]
    path.look(instances=True)
    assert path.closed is None
    table = runner.input_batch.block_table[0]
    table.compute_slot_mapping = table.compute_slot_mapping
    path.look(instances=True)
    assert "compute_slot_mapping of this BlockTable" in path.closed
    assert "compute_slot_mapping" in vars(table)


def test_a_class_s_version_is_found() -> None:
    assert standing.version_offset() is not None

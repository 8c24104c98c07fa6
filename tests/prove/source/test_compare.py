"""The fast comparison of states says `same` only where the slow one finds no difference."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bench_prep.prove.source.compare import difference, same, same_tensors
from bench_prep.prove.source.twins import Twins
from bench_prep.prove.source.variants import Variant
from bench_prep.snapshot import leaves


@pytest.fixture(scope="module")
def twins() -> Iterator[Twins]:
    twins, _ = Variant("all", (16, 32), mrope=True, prompt_embeds=True).twins(seed=0)
    twins.arrive(20)
    twins.arrive(7)
    twins.step()
    twins.step()
    yield twins


def _buffers(runner: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every buffer as a tensor; what a walk makes anew, such as arrays of lists, is none."""
    again = dict(leaves(runner))
    for path, value in leaves(runner):
        if isinstance(value, np.ndarray) and value.ctypes.data == again[path].ctypes.data:
            value = torch.from_numpy(value)
        if isinstance(value, torch.Tensor) and value.numel():
            yield path, value


@pytest.mark.vllm
@torch.inference_mode()
def test_a_change_of_any_buffer_is_seen(twins: Twins) -> None:
    expected, found = twins.runners
    assert same(expected, found)
    changed = 0
    for path, tensor in _buffers(found):
        last = tensor[tuple(size - 1 for size in tensor.shape)]
        before = last.clone()
        last.copy_(before.logical_not() if tensor.dtype is torch.bool else before + 1)
        if not torch.equal(last, before):
            assert not same(expected, found), path
            assert difference(expected, found) is not None, path
            changed += 1
        last.copy_(before)
        assert same(expected, found), path
    assert changed > 40


@pytest.mark.vllm
def test_a_change_of_any_number_of_the_batch_is_seen(twins: Twins) -> None:
    expected, found = twins.runners
    batch = found.input_batch
    for holder, name in (
        (batch, "prev_req_id_to_index"),
        (batch, "num_logprobs"),
        (found, "num_prompt_logprobs"),
    ):
        before = getattr(holder, name)
        setattr(holder, name, {"r9": 0})
        assert not same(expected, found), name
        setattr(holder, name, before)
    request = next(iter(found.requests.values()))
    request.output_token_ids.append(1)
    assert "output_token_ids" in str(difference(expected, found))
    request.output_token_ids.pop()
    assert same(expected, found)


def test_bytes_are_compared() -> None:
    nan = torch.tensor([float("nan")])
    assert same([nan], [nan.clone()])
    assert not same([torch.tensor([0.0])], [torch.tensor([-0.0])])
    assert not same([torch.zeros(2)], [torch.zeros(2, dtype=torch.int32)])
    assert not same([torch.zeros(2)], [torch.zeros(1, 2)])
    assert not same([np.zeros(2, np.int32)], [np.array([0, 1], np.int32)])


def test_bytes_of_many_tensors_are_compared_at_once() -> None:
    nan = torch.tensor(float("nan"))
    pairs = [
        (nan, nan.clone()),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(2, 3).T.contiguous()),
        (torch.zeros(0), torch.zeros(0)),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
    ]
    assert same_tensors(pairs)
    for index, (_, found) in enumerate(pairs):
        if found.numel():
            changed = found.clone().contiguous()
            changed.view(-1).view(torch.uint8)[-1] ^= 1
            assert not same_tensors([*pairs[:index], (pairs[index][0], changed), *pairs[index:]])
    assert not same_tensors([(torch.tensor([0.0]), torch.tensor([-0.0]))])


def test_which_objects_are_one_is_compared() -> None:
    one, other = SimpleNamespace(number=1), SimpleNamespace(number=1)
    assert same([one, one], [other, other])
    assert not same([one, SimpleNamespace(number=1)], [other, other])
    assert not same([one, one], [other, SimpleNamespace(number=1)])


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1] * 20, [1] * 19 + [2]),
        ([1] * 20, [1] * 19 + [True]),
        ([1] * 20, [1] * 21),
        ({1, 2}, {1, 3}),
        (1, True),
        ("a", None),
        (SimpleNamespace(a=1), SimpleNamespace(a=1, b=2)),
        (SimpleNamespace(a=[1]), SimpleNamespace(a=(1,))),
    ],
)
def test_other_values_are_not_the_same(expected: Any, found: Any) -> None:
    assert not same([expected], [found])
    assert same([expected], [expected])

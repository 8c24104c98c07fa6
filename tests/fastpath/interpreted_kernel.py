"""Run as a script: the kernel in Triton's interpreter against the host writer and the mirrors.

Triton decides when it is imported whether it interprets, so this is a process of its own.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

from dataclasses import fields, replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_prep.fastpath.host_writer import HostWriter
from bench_prep.fastpath.kernel import (
    fixed_constants,
    fixed_kernel,
    fixed_tensors,
    group_table,
    step_constants,
    step_kernel,
    step_tensors,
)
from bench_prep.fastpath.mirrors import Mirrors
from bench_prep.fastpath.targets import Group
from tests.fastpath.target_sets import MODEL_LENGTH, runner_of, targets


def cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, Group):
        return Group(cloned(value.block_table), cloned(value.slot_mapping), value.block_size)
    return tuple(map(cloned, value)) if isinstance(value, tuple) else value


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    reqs=st.sampled_from([1, 2, 8, 128, 1024, 1500]),
    tokens=st.sampled_from([1, 64, 1023, 1024, 1025, 4096]),
    sizes=st.lists(st.sampled_from([16, 32, 48, 128, 1024, None]), min_size=1, max_size=5),
    mrope=st.booleans(),
    embeds=st.booleans(),
    position=st.integers(0, MODEL_LENGTH - 1),
    delta=st.integers(-50, 50),
    token=st.integers(0, 2**31 - 1),
)
def same_writes(
    seed: int, reqs: int, tokens: int, sizes: list[int | None], mrope: bool, embeds: bool,
    position: int, delta: int, token: int,
) -> None:  # fmt: skip
    by_kernel = targets(seed, reqs, tokens, sizes, mrope, embeds)
    by_host = replace(
        by_kernel, **{f.name: cloned(getattr(by_kernel, f.name)) for f in fields(by_kernel)}
    )
    sampled = torch.tensor([[token]], dtype=torch.int32)
    grid, groups = (len(sizes),), group_table(by_kernel)
    fixed_kernel[grid](*fixed_tensors(by_kernel, groups), *fixed_constants(by_kernel).values())
    numbers = torch.tensor([sampled.data_ptr(), position, position + delta], dtype=torch.int64)
    step_kernel[grid](
        numbers, *step_tensors(by_kernel, groups), *step_constants(by_kernel).values()
    )
    mirrors, writer = Mirrors(runner_of(by_host, token, position)), HostWriter(by_host)
    mirrors.write_fixed(0)
    mirrors.write(position, position + delta)
    writer.write_fixed()
    writer.write(position, position + delta, sampled)
    for f in fields(by_kernel):
        one, other = getattr(by_kernel, f.name), getattr(by_host, f.name)
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other), f.name
    for index, (one, other) in enumerate(zip(by_kernel.groups, by_host.groups, strict=True)):
        assert torch.equal(one.block_table, other.block_table), index
        if one.slot_mapping is not None:
            assert torch.equal(one.slot_mapping, other.slot_mapping), index


if __name__ == "__main__":
    same_writes()
    print("same writes")

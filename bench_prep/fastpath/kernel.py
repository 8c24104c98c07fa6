"""The kernels: one writes a step, a program per KV group; the other what every step leaves alike.

Both get the addresses of the runner's tensors as arguments; those of the groups' tables are in a
`uint64` table. The step's kernel is captured once and replayed, so that its arguments never change:
what does change from step to step it reads from three numbers in pinned host memory.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from bench_prep.fastpath.targets import PAD_SLOT_ID, Targets

#: Entries of the step's numbers, int64 in pinned host memory.
SAMPLED_ADDRESS, POSITION, MROPE_POSITION = range(3)
#: Entries of the table per group: address of the block table, address of the slot mapping (0: the
#: group has none), block size in tokens.
PER_GROUP = 3
#: Elements that one program writes at a time.
CHUNK = 1024

_SAMPLED_ADDRESS = tl.constexpr(SAMPLED_ADDRESS)
_POSITION = tl.constexpr(POSITION)
_MROPE_POSITION = tl.constexpr(MROPE_POSITION)
_PER_GROUP = tl.constexpr(PER_GROUP)
_PAD = tl.constexpr(PAD_SLOT_ID)


def group_table(targets: Targets) -> torch.Tensor:
    """The `uint64` table of the groups' addresses and block sizes, on the targets' device."""
    entries = []
    for group in targets.groups:
        slots = group.slot_mapping
        entries += [
            group.block_table.data_ptr(),
            0 if slots is None else slots.data_ptr(),
            group.block_size,
        ]
    return torch.tensor(entries, dtype=torch.uint64).to(targets.positions.device)


@triton.jit
def step_kernel(
    step,  # the step's numbers
    groups,  # the groups' table
    input_ids,
    positions,
    seq_lens,
    num_computed_tokens,
    num_accepted_tokens,
    is_token_ids,
    mrope_positions,
    MROPE_STRIDE: tl.constexpr,  # elements between the three rows, 0 without M-RoPE
    PROMPT_EMBEDS: tl.constexpr,
):
    """What the step that computes the token at its position writes; one program per group."""
    position = tl.load(step + _POSITION)
    address = tl.load(step + _SAMPLED_ADDRESS).to(tl.uint64)
    mrope_position = tl.load(step + _MROPE_POSITION)
    sampled = address.to(tl.pointer_type(tl.int32), bitcast=True)
    write_step(
        sampled, position, mrope_position, groups, input_ids, positions, seq_lens,
        num_computed_tokens, num_accepted_tokens, is_token_ids, mrope_positions,
        MROPE_STRIDE, PROMPT_EMBEDS,
    )  # fmt: skip


@triton.jit
def write_step(
    sampled,  # address of the previous step's sampled token
    position,
    mrope_position,
    groups,
    input_ids,
    positions,
    seq_lens,
    num_computed_tokens,
    num_accepted_tokens,
    is_token_ids,
    mrope_positions,
    MROPE_STRIDE: tl.constexpr,
    PROMPT_EMBEDS: tl.constexpr,
):
    group = tl.program_id(0)
    entry = groups + group * _PER_GROUP
    # All loads before the first store, so that the waits overlap.
    blocks = tl.load(entry).to(tl.pointer_type(tl.int32), bitcast=True)
    slot_address = tl.load(entry + 1)
    size = tl.load(entry + 2).to(tl.int32)
    token = tl.load(sampled)
    index = position.to(tl.int32)  # below the model's length; 32 bits divide faster
    block = tl.load(blocks + index // size).to(tl.int64)

    if slot_address != 0:
        slots = slot_address.to(tl.pointer_type(tl.int64), bitcast=True)
        tl.store(slots, block * size + index % size)
    if group == 0:
        tl.store(input_ids, token)
        tl.store(positions, position)
        tl.store(num_computed_tokens, index)
        tl.store(seq_lens, index + 1)
        # The request's own is not left alone where Mamba's states are aligned to blocks.
        tl.store(num_accepted_tokens, 1)
        if PROMPT_EMBEDS:
            tl.store(is_token_ids, 1)
        if MROPE_STRIDE > 0:
            tl.store(mrope_positions, mrope_position)
            tl.store(mrope_positions + MROPE_STRIDE, mrope_position)
            tl.store(mrope_positions + 2 * MROPE_STRIDE, mrope_position)


@triton.jit
def fixed_kernel(
    groups,
    seq_lens,
    query_start_loc,
    discard_request_mask,
    num_accepted_tokens,
    req_indices,
    query_pos,
    num_scheduled_tokens,
    MAX_NUM_REQS: tl.constexpr,
    MAX_NUM_TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """What every single-token step of one request leaves alike, padding included."""
    group = tl.program_id(0)
    if group == 0:
        tl.store(discard_request_mask, 0)
        tl.store(req_indices, 0)
        tl.store(query_pos, 0)
        tl.store(num_scheduled_tokens, 1)
        for start in range(0, MAX_NUM_REQS + 1, CHUNK):
            offsets = start + tl.arange(0, CHUNK)
            zeros = tl.zeros((CHUNK,), tl.int32)
            tl.store(seq_lens + offsets, zeros, mask=offsets < MAX_NUM_REQS)
            ones = tl.full((CHUNK,), 1, tl.int32)
            tl.store(num_accepted_tokens + offsets, ones, mask=offsets < MAX_NUM_REQS)
            starts = tl.minimum(offsets, 1)
            tl.store(query_start_loc + offsets, starts, mask=offsets <= MAX_NUM_REQS)
    slot_address = tl.load(groups + group * _PER_GROUP + 1)
    if slot_address != 0:
        slots = slot_address.to(tl.pointer_type(tl.int64), bitcast=True)
        for start in range(0, MAX_NUM_TOKENS, CHUNK):
            offsets = start + tl.arange(0, CHUNK)
            padding = tl.full((CHUNK,), _PAD, tl.int64)
            tl.store(slots + offsets, padding, mask=offsets < MAX_NUM_TOKENS)


#: The types of what a kernel is given, which are all that a compilation may assume of it, in order.
STEP_SIGNATURE = {
    "step": "*i64",
    "groups": "*u64",
    "input_ids": "*i32",
    "positions": "*i64",
    "seq_lens": "*i32",
    "num_computed_tokens": "*i32",
    "num_accepted_tokens": "*i32",
    "is_token_ids": "*u8",
    "mrope_positions": "*i64",
}
FIXED_SIGNATURE = {
    "groups": "*u64",
    "seq_lens": "*i32",
    "query_start_loc": "*i32",
    "discard_request_mask": "*u8",
    "num_accepted_tokens": "*i32",
    "req_indices": "*i64",
    "query_pos": "*i64",
    "num_scheduled_tokens": "*i32",
}


def step_tensors(targets: Targets, groups: torch.Tensor) -> list[torch.Tensor]:
    """The step kernel's arguments behind the step's numbers, in the order of `STEP_SIGNATURE`.

    A branch that is compiled out gets any tensor.
    """
    flags, mrope = targets.is_token_ids, targets.mrope_positions
    return [
        groups,
        targets.input_ids,
        targets.positions,
        targets.seq_lens,
        targets.num_computed_tokens,
        targets.num_accepted_tokens,
        (targets.discard_request_mask if flags is None else flags).view(torch.uint8),
        targets.positions if mrope is None else mrope,
    ]


def fixed_tensors(targets: Targets, groups: torch.Tensor) -> list[torch.Tensor]:
    """The fixed kernel's arguments, in the order of `FIXED_SIGNATURE`."""
    return [
        groups,
        targets.seq_lens,
        targets.query_start_loc,
        targets.discard_request_mask.view(torch.uint8),
        targets.num_accepted_tokens,
        targets.req_indices,
        targets.query_pos,
        targets.num_scheduled_tokens,
    ]


def step_constants(targets: Targets) -> dict[str, int | bool]:
    """The compile-time constants of the step's kernel for a runner's targets."""
    mrope = targets.mrope_positions
    return {
        "MROPE_STRIDE": 0 if mrope is None else mrope.stride(0),
        "PROMPT_EMBEDS": targets.is_token_ids is not None,
    }


def fixed_constants(targets: Targets) -> dict[str, int | bool]:
    """The compile-time constants of the fixed kernel for a runner's targets."""
    return {
        "MAX_NUM_REQS": targets.max_num_reqs,
        "MAX_NUM_TOKENS": targets.max_num_tokens,
        "CHUNK": CHUNK,
    }


def step_source(constants: dict[str, int | bool]) -> triton.compiler.ASTSource:
    """The step kernel's source for `triton.compile`."""
    return source(step_kernel, STEP_SIGNATURE, constants)


def fixed_source(constants: dict[str, int | bool]) -> triton.compiler.ASTSource:
    """The fixed kernel's source for `triton.compile`."""
    return source(fixed_kernel, FIXED_SIGNATURE, constants)


def source(
    kernel: Any, signature: dict[str, str], constants: dict[str, int | bool]
) -> triton.compiler.ASTSource:
    """A kernel's source for `triton.compile`: types of arguments, then compile-time constants."""
    names = [*signature, *constants]
    return triton.compiler.ASTSource(
        fn=kernel,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )

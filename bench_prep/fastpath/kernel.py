"""The one launch: a program per KV group writes its slot; program 0 writes what groups share.

The launch is captured once and replayed, so its arguments never change: the addresses of the
runner's tensors are arguments, those of the groups' tables are in a `uint64` table, and what does
change from step to step is read from three numbers in pinned host memory.
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

_PER_GROUP = tl.constexpr(PER_GROUP)
_PAD = tl.constexpr(PAD_SLOT_ID)
_SAMPLED_ADDRESS = tl.constexpr(SAMPLED_ADDRESS)
_POSITION = tl.constexpr(POSITION)
_MROPE_POSITION = tl.constexpr(MROPE_POSITION)


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
def decode_inputs_kernel(
    step,  # the step's numbers
    groups,  # the groups' table
    input_ids,
    positions,
    seq_lens,
    num_computed_tokens,
    query_start_loc,
    discard_request_mask,
    num_accepted_tokens,
    req_indices,
    query_pos,
    num_scheduled_tokens,
    is_token_ids,
    mrope_positions,
    MROPE_STRIDE: tl.constexpr,  # elements between the three rows, 0 without M-RoPE
    PROMPT_EMBEDS: tl.constexpr,
    MAX_NUM_REQS: tl.constexpr,
    MAX_NUM_TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    group = tl.program_id(0)
    # All that comes from the host or from other tables is asked for before the first store, so
    # that the waits overlap.
    position = tl.load(step + _POSITION).to(tl.int32)
    sampled_address = tl.load(step + _SAMPLED_ADDRESS).to(tl.uint64)
    mrope_position = tl.load(step + _MROPE_POSITION)
    entry = groups + group * _PER_GROUP
    blocks = tl.load(entry).to(tl.pointer_type(tl.int32), bitcast=True)
    slot_address = tl.load(entry + 1)
    block_size = tl.load(entry + 2).to(tl.int32)
    token = tl.load(sampled_address.to(tl.pointer_type(tl.int32), bitcast=True))
    block = tl.load(blocks + position // block_size).to(tl.int64)

    if group == 0:
        tl.store(input_ids, token)
        tl.store(positions, position.to(tl.int64))
        tl.store(num_computed_tokens, position)
        tl.store(discard_request_mask, 0)
        tl.store(req_indices, 0)
        tl.store(query_pos, 0)
        tl.store(num_scheduled_tokens, 1)
        for start in range(0, MAX_NUM_REQS + 1, CHUNK):
            offsets = start + tl.arange(0, CHUNK)
            in_batch = offsets < MAX_NUM_REQS
            tl.store(seq_lens + offsets, tl.where(offsets == 0, position + 1, 0), mask=in_batch)
            ones = tl.full((CHUNK,), 1, tl.int32)
            tl.store(num_accepted_tokens + offsets, ones, mask=in_batch)
            starts = tl.minimum(offsets, 1)
            tl.store(query_start_loc + offsets, starts, mask=offsets <= MAX_NUM_REQS)
        if PROMPT_EMBEDS:
            tl.store(is_token_ids, 1)
        if MROPE_STRIDE > 0:
            tl.store(mrope_positions, mrope_position)
            tl.store(mrope_positions + MROPE_STRIDE, mrope_position)
            tl.store(mrope_positions + 2 * MROPE_STRIDE, mrope_position)

    if slot_address != 0:
        slot = block * block_size + position % block_size
        slots = slot_address.to(tl.pointer_type(tl.int64), bitcast=True)
        for start in range(0, MAX_NUM_TOKENS, CHUNK):
            offsets = start + tl.arange(0, CHUNK)
            values = tl.where(offsets == 0, slot, _PAD)
            tl.store(slots + offsets, values, mask=offsets < MAX_NUM_TOKENS)


#: Types of the arguments that are addresses, for a compilation that assumes nothing else of them.
SIGNATURE = {
    "step": "*i64",
    "groups": "*u64",
    "input_ids": "*i32",
    "positions": "*i64",
    "seq_lens": "*i32",
    "num_computed_tokens": "*i32",
    "query_start_loc": "*i32",
    "discard_request_mask": "*u8",
    "num_accepted_tokens": "*i32",
    "req_indices": "*i64",
    "query_pos": "*i64",
    "num_scheduled_tokens": "*i32",
    "is_token_ids": "*u8",
    "mrope_positions": "*i64",
}


def arguments(targets: Targets, step: torch.Tensor, groups: torch.Tensor) -> list[Any]:
    """The tensors in the order of `SIGNATURE`; a branch that is compiled out gets any tensor."""
    flags = targets.is_token_ids
    mrope = targets.mrope_positions
    return [
        step,
        groups,
        targets.input_ids,
        targets.positions,
        targets.seq_lens,
        targets.num_computed_tokens,
        targets.query_start_loc,
        targets.discard_request_mask.view(torch.uint8),
        targets.num_accepted_tokens,
        targets.req_indices,
        targets.query_pos,
        targets.num_scheduled_tokens,
        (targets.discard_request_mask if flags is None else flags).view(torch.uint8),
        targets.positions if mrope is None else mrope,
    ]


def constants(targets: Targets) -> dict[str, int | bool]:
    """The compile-time constants of the kernel for a runner's targets."""
    mrope = targets.mrope_positions
    return {
        "MROPE_STRIDE": 0 if mrope is None else mrope.stride(0),
        "PROMPT_EMBEDS": targets.is_token_ids is not None,
        "MAX_NUM_REQS": targets.max_num_reqs,
        "MAX_NUM_TOKENS": targets.max_num_tokens,
        "CHUNK": CHUNK,
    }


def ahead_of_time_source(values: dict[str, int | bool]) -> triton.compiler.ASTSource:
    """The kernel's source for `triton.compile`, with the given constants."""
    signature = SIGNATURE | dict.fromkeys(values, "constexpr")
    names = list(signature)
    return triton.compiler.ASTSource(
        fn=decode_inputs_kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in values.items()},
    )

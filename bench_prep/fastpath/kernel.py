"""The one launch: a program per KV group writes its slot; program 0 writes what groups share.

All tensors are reached through a `uint64` table of addresses that is made once, and what changes
from step to step through three numbers in pinned host memory, which the device reads. So every
launch has the same two arguments. Offsets of the table are the constants below.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from bench_prep.fastpath.targets import PAD_SLOT_ID, Targets

#: Entries of the address table before the groups', in this order.
SHARED = (
    "input_ids",
    "positions",
    "seq_lens",
    "num_computed_tokens",
    "query_start_loc",
    "discard_request_mask",
    "num_accepted_tokens",
    "req_indices",
    "query_pos",
    "num_scheduled_tokens",
    "is_token_ids",
    "mrope row 0",
    "mrope row 1",
    "mrope row 2",
)
#: Entries per group: block table, slot mapping (0: the group has none), block size in tokens.
PER_GROUP = 3
#: Entries of the step's numbers, int64 in pinned host memory.
SAMPLED_ADDRESS, POSITION, MROPE_POSITION = range(3)
#: Elements that one program writes at a time.
CHUNK = 1024

_FIRST_GROUP = tl.constexpr(len(SHARED))
_PER_GROUP = tl.constexpr(PER_GROUP)
_PAD = tl.constexpr(PAD_SLOT_ID)
_SAMPLED_ADDRESS = tl.constexpr(SAMPLED_ADDRESS)
_POSITION = tl.constexpr(POSITION)
_MROPE_POSITION = tl.constexpr(MROPE_POSITION)


def address_table(targets: Targets) -> torch.Tensor:
    """The `uint64` table of a runner's addresses and block sizes, on the targets' device."""
    mrope = targets.mrope_positions
    rows = [0, 0, 0] if mrope is None else [mrope[row].data_ptr() for row in range(3)]
    shared = [getattr(targets, name) for name in SHARED[:-3]]
    entries = [0 if tensor is None else tensor.data_ptr() for tensor in shared] + rows
    for group in targets.groups:
        slots = group.slot_mapping
        entries += [
            group.block_table.data_ptr(),
            0 if slots is None else slots.data_ptr(),
            group.block_size,
        ]
    return torch.tensor(entries, dtype=torch.uint64).to(targets.positions.device)


@triton.jit
def _pointer(table, index, kind: tl.constexpr):
    return tl.load(table + index).to(tl.pointer_type(kind), bitcast=True)


@triton.jit(do_not_specialize=["table_address", "step_address"])
def decode_inputs_kernel(
    table_address,  # address of the table
    step_address,  # address of the step's numbers
    MAX_NUM_REQS: tl.constexpr,
    MAX_NUM_TOKENS: tl.constexpr,
    MROPE: tl.constexpr,
    PROMPT_EMBEDS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    group = tl.program_id(0)
    step = step_address.to(tl.uint64).to(tl.pointer_type(tl.int64), bitcast=True)
    position = tl.load(step + _POSITION).to(tl.int32)
    table = table_address.to(tl.uint64).to(tl.pointer_type(tl.uint64), bitcast=True)
    entry = _FIRST_GROUP + group * _PER_GROUP

    slot_address = tl.load(table + entry + 1)
    if slot_address != 0:
        block_size = tl.load(table + entry + 2).to(tl.int32)
        blocks = _pointer(table, entry, tl.int32)
        block = tl.load(blocks + position // block_size).to(tl.int64)
        slot = block * block_size + position % block_size
        slots = slot_address.to(tl.pointer_type(tl.int64), bitcast=True)
        for start in range(0, MAX_NUM_TOKENS, CHUNK):
            offsets = start + tl.arange(0, CHUNK)
            values = tl.where(offsets == 0, slot, _PAD)
            tl.store(slots + offsets, values, mask=offsets < MAX_NUM_TOKENS)

    if group == 0:
        sampled_address = tl.load(step + _SAMPLED_ADDRESS).to(tl.uint64)
        sampled = sampled_address.to(tl.pointer_type(tl.int32), bitcast=True)
        tl.store(_pointer(table, 0, tl.int32), tl.load(sampled))
        tl.store(_pointer(table, 1, tl.int64), position.to(tl.int64))
        tl.store(_pointer(table, 3, tl.int32), position)
        tl.store(_pointer(table, 5, tl.int8), 0)
        tl.store(_pointer(table, 7, tl.int64), 0)
        tl.store(_pointer(table, 8, tl.int64), 0)
        tl.store(_pointer(table, 9, tl.int32), 1)
        lengths = _pointer(table, 2, tl.int32)
        starts = _pointer(table, 4, tl.int32)
        accepted = _pointer(table, 6, tl.int32)
        for start in range(0, MAX_NUM_REQS + 1, CHUNK):
            offsets = start + tl.arange(0, CHUNK)
            in_batch = offsets < MAX_NUM_REQS
            tl.store(lengths + offsets, tl.where(offsets == 0, position + 1, 0), mask=in_batch)
            tl.store(accepted + offsets, tl.full((CHUNK,), 1, tl.int32), mask=in_batch)
            tl.store(starts + offsets, tl.minimum(offsets, 1), mask=offsets <= MAX_NUM_REQS)
        if PROMPT_EMBEDS:
            tl.store(_pointer(table, 10, tl.int8), 1)
        if MROPE:
            value = tl.load(step + _MROPE_POSITION)
            tl.store(_pointer(table, 11, tl.int64), value)
            tl.store(_pointer(table, 12, tl.int64), value)
            tl.store(_pointer(table, 13, tl.int64), value)


#: Argument types for a compilation that assumes nothing about their values.
SIGNATURE = {"table_address": "i64", "step_address": "i64"}


def constants(targets: Targets) -> dict[str, int | bool]:
    """The compile-time constants of the kernel for a runner's targets."""
    return {
        "MAX_NUM_REQS": targets.max_num_reqs,
        "MAX_NUM_TOKENS": targets.max_num_tokens,
        "MROPE": targets.mrope_positions is not None,
        "PROMPT_EMBEDS": targets.is_token_ids is not None,
        "CHUNK": CHUNK,
    }


def ahead_of_time_source(values: dict[str, int | bool]) -> triton.compiler.ASTSource:
    """The kernel's source for `triton.compile`, with the given constants."""
    signature = dict(SIGNATURE) | dict.fromkeys(values, "constexpr")
    names = list(signature)
    return triton.compiler.ASTSource(
        fn=decode_inputs_kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in values.items()},
    )

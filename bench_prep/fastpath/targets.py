"""The device tensors that a decode step writes, found in one V1 runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PAD_SLOT_ID = -1


def memory(array: Any) -> memoryview:
    """A NumPy array's memory: reading or writing one number, or copying a row, costs less than
    half of what NumPy takes for it."""
    return memoryview(array)


@dataclass(frozen=True)
class Group:
    """One KV group: its device block table [max_num_reqs, blocks] int32 and slots [tokens] int64.

    `slot_mapping` is None for groups without slots (SlotMappingMode.NONE, recurrent state).
    `block_size` is that of the table's entries, in tokens.
    """

    block_table: torch.Tensor
    slot_mapping: torch.Tensor | None
    block_size: int


@dataclass(frozen=True)
class Targets:
    """All of them, with the dtypes that the kernel writes."""

    input_ids: torch.Tensor  # [max_num_tokens] int32
    positions: torch.Tensor  # [max_num_tokens] int64
    seq_lens: torch.Tensor  # [max_num_reqs] int32
    num_computed_tokens: torch.Tensor  # [max_num_reqs] int32
    query_start_loc: torch.Tensor  # [max_num_reqs + 1] int32
    discard_request_mask: torch.Tensor  # [max_num_reqs] bool
    num_accepted_tokens: torch.Tensor  # [max_num_reqs] int32
    req_indices: torch.Tensor  # [max_num_tokens] int64
    query_pos: torch.Tensor  # int64
    num_scheduled_tokens: torch.Tensor  # [max_num_reqs] int32
    is_token_ids: torch.Tensor | None  # [max_num_tokens] bool, with prompt embeddings
    mrope_positions: torch.Tensor | None  # [3, max_num_tokens + 1] int64
    groups: tuple[Group, ...]
    max_num_reqs: int
    max_num_tokens: int
    pads_slots: bool  # vLLM's own path fills the slots behind the last token with PAD_SLOT_ID


def find_targets(runner: Any) -> Targets:
    """The targets of a runner whose source is known.

    Raises:
        TypeError: a buffer has another dtype, layout or device than the known source gives it.
    """
    targets = Targets(
        input_ids=runner.input_ids.gpu,
        positions=runner.positions,
        seq_lens=runner.seq_lens,
        num_computed_tokens=runner.num_computed_tokens,
        query_start_loc=runner.query_start_loc.gpu,
        discard_request_mask=runner.discard_request_mask.gpu,
        num_accepted_tokens=runner.num_accepted_tokens.gpu,
        req_indices=runner.req_indices.gpu,
        query_pos=runner.query_pos.gpu,
        num_scheduled_tokens=runner.num_scheduled_tokens.gpu,
        is_token_ids=runner.is_token_ids.gpu if runner.enable_prompt_embeds else None,
        mrope_positions=runner.mrope_positions.gpu if runner.uses_mrope else None,
        groups=tuple(_group(table) for table in runner.input_batch.block_table.block_tables),
        max_num_reqs=runner.max_num_reqs,
        max_num_tokens=runner.max_num_tokens,
        pads_slots=runner.device.type != "cpu" or _triton_on_cpu(),
    )
    _check(targets)
    return targets


def _group(table: Any) -> Group:
    from vllm.v1.worker.block_table import SlotMappingMode

    has_slots = table.slot_mapping_mode == SlotMappingMode.TOKEN_TO_KV_SLOT
    return Group(
        block_table=table.block_table.gpu,
        slot_mapping=table.slot_mapping.gpu if has_slots else None,
        block_size=int(table.block_size),
    )


def _triton_on_cpu() -> bool:
    """vLLM's Triton kernel pads the slots; its C++ stand-in for the CPU platform does not."""
    from vllm.triton_utils import HAS_TRITON

    return bool(HAS_TRITON)


def _check(targets: Targets) -> None:
    int32, int64, boolean = torch.int32, torch.int64, torch.bool
    expected: list[tuple[str, torch.Tensor | None, torch.dtype]] = [
        ("input_ids", targets.input_ids, int32),
        ("positions", targets.positions, int64),
        ("seq_lens", targets.seq_lens, int32),
        ("num_computed_tokens", targets.num_computed_tokens, int32),
        ("query_start_loc", targets.query_start_loc, int32),
        ("discard_request_mask", targets.discard_request_mask, boolean),
        ("num_accepted_tokens", targets.num_accepted_tokens, int32),
        ("req_indices", targets.req_indices, int64),
        ("query_pos", targets.query_pos, int64),
        ("num_scheduled_tokens", targets.num_scheduled_tokens, int32),
        ("is_token_ids", targets.is_token_ids, boolean),
        ("mrope_positions", targets.mrope_positions, int64),
    ]
    for index, group in enumerate(targets.groups):
        expected.append((f"block_table of group {index}", group.block_table, int32))
        expected.append((f"slot_mapping of group {index}", group.slot_mapping, int64))
    for name, tensor, dtype in expected:
        if tensor is not None and (tensor.dtype is not dtype or tensor.stride(-1) != 1):
            raise TypeError(f"{name} is {tensor.dtype} with strides {tensor.stride()}, not {dtype}")
        if tensor is not None and tensor.device != targets.positions.device:
            raise TypeError(f"{name} is on {tensor.device}, not on {targets.positions.device}")

"""When the fast path may prepare a step: the service gate, once, and the step gate, every step.

A closed gate means vLLM's own path, whole. Each condition has a name, which is also the name of
its counter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench_prep.fastpath.block_tables import Marks
from bench_prep.fastpath.fingerprint import known, known_source, part_hashes, what_differs
from bench_prep.fastpath.standing import replaced, replaced_on
from bench_prep.fastpath.targets import memory


@dataclass(frozen=True)
class Condition:
    """One condition of the service gate: `holds(runner)` is true when the gate stays open.

    A first line of defence has no `second_line`: without it some runner's states would differ,
    which a test shows. A second line has the reason why no such runner is known.
    """

    name: str
    why: str
    holds: Callable[[Any], bool]
    second_line: str | None = None


def _platform(runner: Any) -> str:
    return str(runner.device.type)


def _architectures_known(runner: Any) -> bool:
    names = runner.model_config.hf_config.architectures or []
    return bool(names) and all(name in known()["architectures"] for name in names)


def _parallel_sizes_are_one(runner: Any) -> bool:
    parallel = runner.parallel_config
    return all(
        getattr(parallel, name, 1) == 1
        for name in (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "decode_context_parallel_size",
        )
    )


def _tables_are_vllms(runner: Any) -> bool:
    from vllm.v1.worker import block_table

    own = block_table.BlockTable
    return own.__module__ == block_table.__name__ and all(
        type(table) is own for table in runner.input_batch.block_table.block_tables
    )


UNKNOWN_SOURCE = "unknown runner source"
REPLACED_METHOD = "replaced method"
SERVICE_GATE: tuple[Condition, ...] = (
    Condition(
        "unsupported device",
        "the writes have been proven on the listed device types only",
        lambda r: _platform(r) in known()["devices"],
        second_line="no trace without such a device; its runner may well have CUDA's source",
    ),
    Condition(
        UNKNOWN_SOURCE,
        "a method that is replaced or relied on is not the proven one",
        lambda r: (
            known_source(r.__class__, _platform(r)) is not None
            and replaced(r.__class__, _platform(r)) is None
        ),
    ),
    Condition(
        "another block table",
        "only vLLM's own class is known, and which of its methods write",
        _tables_are_vllms,
    ),
    Condition(
        "unlisted architecture",
        "an architecture is listed once it has been proven equal",
        _architectures_known,
        second_line="vLLM's preparation asks the model nothing behind the prompt",
    ),
    Condition(
        # On a device the sampled token never reaches the host under async scheduling, which is
        # vLLM's default; its CPU platform always turns async scheduling off.
        "async scheduling",
        "must be on with a device and off on the CPU platform",
        lambda r: bool(r.use_async_scheduling) == (_platform(r) != "cpu"),
        second_line="the step gate asks for the sampled token itself",
    ),
    Condition(
        "parallelism",
        "slots and tokens depend on other ranks; tensor, pipeline and context parallel sizes "
        "must be 1",
        _parallel_sizes_are_one,
    ),
    Condition(
        "data parallelism",
        "the dummy runs between steps have not been proven",
        lambda r: r.parallel_config.data_parallel_size == 1,
        second_line="every step writes anew all that a dummy run writes, but no service of several "
        "ranks has been compared",
    ),
    Condition(
        "speculative decoding",
        "draft tokens change every length",
        lambda r: r.speculative_config is None and r.num_accepted_tokens_event is None,
    ),
    Condition("LoRA", "adapters are switched inside the preparation", lambda r: not r.lora_config),
    Condition(
        "XD-RoPE",
        "its positions, which have no delta, are not written",
        lambda r: not getattr(r, "uses_xdrope_dim", 0),
    ),
    Condition(
        "encoder-decoder",
        "cross-attention has not been proven",
        lambda r: not r.model_config.is_encoder_decoder,
        second_line="vLLM prepares the encoder's lengths with the attention metadata, behind the "
        "preparation",
    ),
    Condition(
        "M-RoPE rows",
        "the kernel writes three rows",
        lambda r: not r.uses_mrope or r.mrope_positions.gpu.shape[0] == 3,
        second_line="vLLM 0.26 has always three, and the host's writes are of all rows",
    ),
    Condition(
        "no KV groups",
        "the kernel has a program per group, and the first one writes what all share",
        lambda r: bool(r.input_batch.block_table.block_tables),
    ),
    Condition(
        "Mamba state of speculative decoding",
        "its block indices are prepared too",
        lambda r: getattr(r, "mamba_prev_last_scheduled_idx", None) is None,
        second_line="vLLM has it with speculative decoding only",
    ),
    Condition(
        REPLACED_METHOD,
        "the runner, its batch or a block table has another method than its class",
        lambda r: replaced_on(r) is None,
    ),
)


def closed_service_gate(runner: Any) -> str | None:
    """The name and reason of the first condition that fails, or None when the gate is open."""
    for condition in SERVICE_GATE:
        if not condition.holds(runner):
            why = condition.why
            if condition.name == UNKNOWN_SOURCE:
                platform = _platform(runner)
                why = (
                    what_differs(part_hashes(runner.__class__, platform), platform)
                    or replaced(runner.__class__, platform)
                    or why
                )
            elif condition.name == REPLACED_METHOD:
                why = replaced_on(runner) or why
            return f"{condition.name}: {why}"
    return None


#: Reasons of the step gate, in the order in which they are tested: the likeliest first.
SEVERAL_REQUESTS = "several requests"
SEVERAL_TOKENS = "several tokens"
BATCH_REPLACED = "batch replaced"
NO_SAMPLED_TOKEN = "no sampled token on the device"
NOT_AT_INDEX_0 = "not at index 0 in the previous step"
SAMPLED_TOKEN_KIND = "sampled token of another kind"
IN_PROMPT = "still in the prompt"
NOT_CONTINUOUS = "tokens not continuous with the position"
LENGTH_MISMATCH = "last length is not the position"
DRAFT_TOKENS = "draft tokens"
ENCODER_INPUT = "encoder input"
STEP_REASONS = (
    SEVERAL_REQUESTS,
    SEVERAL_TOKENS,
    BATCH_REPLACED,
    NO_SAMPLED_TOKEN,
    NOT_AT_INDEX_0,
    SAMPLED_TOKEN_KIND,
    IN_PROMPT,
    NOT_CONTINUOUS,
    LENGTH_MISMATCH,
    DRAFT_TOKENS,
    ENCODER_INPUT,
)
#: Second lines of defence: without one of these no trace of a scheduler is known to leave another
#: state, and why. Every other reason is a first line, which a test shows.
STEP_SECOND_LINE = {
    SEVERAL_REQUESTS: "each has a token, so that they are several tokens too; the name says more",
    SEVERAL_TOKENS: "of several requests, or of one in its prompt or not continuous",
    NO_SAMPLED_TOKEN: "no request then has an index in the previous step",
    SAMPLED_TOKEN_KIND: "vLLM's samplers leave int32 of shape [requests, 1] on the runner's "
    "device, of which the first is read; none is left on the CPU platform. Asked of the first "
    "token after anything else than a dispatched step, as it costs a sixth of gate and mirrors",
    LENGTH_MISMATCH: "whatever another writer leaves is heard of, and then all is written anew",
    DRAFT_TOKENS: "there are none without speculative decoding, and with them several tokens",
    ENCODER_INPUT: "belongs to a prompt, and vLLM's preparation does not read it",
}


#: What an open step gate calls: position, vLLM's `CachedRequestState` of the one request, and the
#: previous step's sampled token, int32 of shape [1, 1] on the runner's device; None on the CPU
#: platform, where the token is in the host's token table.
Dispatch = Callable[[int, Any, Any], None]


def step_gate(runner: Any, marks: Marks, dispatch: Dispatch) -> Callable[[Any], str | None]:
    """The step gate of one runner: calls `dispatch`, or returns the reason why it may not.

    It is a closure, as everything that runs in every step: inside an engine each object that is
    looked at costs more than the comparison.
    """
    batch = runner.input_batch
    requests = runner.requests
    # The device's index, None on the CPU platform.
    device = None if runner.device.type == "cpu" else runner.positions.get_device()
    computed = memory(batch.num_computed_tokens_cpu)
    last_lengths = memory(runner.optimistic_seq_lens_cpu.numpy())
    int32 = torch.int32

    def check(scheduler_output: Any) -> str | None:
        request_ids = batch._req_ids
        if len(request_ids) != 1:
            return SEVERAL_REQUESTS
        if scheduler_output.total_num_scheduled_tokens != 1:
            return SEVERAL_TOKENS
        if runner.input_batch is not batch:
            return BATCH_REPLACED
        request_id = request_ids[0]
        sampled = batch.prev_sampled_token_ids
        if device is not None:
            if sampled is None:
                return NO_SAMPLED_TOKEN
            previous = batch.prev_req_id_to_index
            if not previous or previous.get(request_id) != 0:
                return NOT_AT_INDEX_0
            if marks.stale and (
                sampled.numel() != 1 or sampled.get_device() != device or sampled.dtype is not int32
            ):
                return SAMPLED_TOKEN_KIND
        elif sampled is not None:
            return SAMPLED_TOKEN_KIND
        request = requests[request_id]
        position = computed[0]
        prompt = request.num_prompt_tokens
        if position < prompt:
            return IN_PROMPT
        if prompt + len(request.output_token_ids) != position + 1:
            return NOT_CONTINUOUS
        if last_lengths[0] != position:
            return LENGTH_MISMATCH
        if scheduler_output.scheduled_spec_decode_tokens:
            return DRAFT_TOKENS
        if scheduler_output.scheduled_encoder_inputs:
            return ENCODER_INPUT
        dispatch(position, request, sampled)
        return None

    return check

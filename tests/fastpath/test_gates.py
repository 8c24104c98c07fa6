"""Each condition closes its gate, under its own name."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_prep.errors import Missing
from bench_prep.settings import RunSettings

pytestmark = pytest.mark.vllm
SETTINGS = RunSettings(
    position=100, max_model_len=256, max_num_reqs=4, max_num_tokens=64, block_sizes=(16,)
)


@pytest.fixture(scope="module")
def runner() -> Any:
    from bench_prep.decode.runner import make_runners

    return make_runners(SETTINGS, 1)[0]


@pytest.fixture
def decoder(runner: Any) -> Any:
    """In decode, with the fast path attached; detached again afterwards."""
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.fastpath import attach

    candidate = attach(runner)
    work = Workload.make(SETTINGS, runner.inputs_embeds_size, runner.dtype)
    made = Decoder(runner, work, candidate)
    made.reserve_tokens(200)
    made.restart()
    made.step()
    made.before()
    yield made
    made.call()
    made.after()
    candidate.detach()


def test_the_service_gate_is_open_for_this_runner(runner: Any) -> None:
    from bench_prep.fastpath.gates import closed_service_gate

    assert closed_service_gate(runner) is None


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("unsupported device", "device", torch.device("meta")),
        ("unlisted architecture", "model_config.hf_config.architectures", ["Unheard"]),
        ("unlisted architecture", "model_config.hf_config.architectures", None),
        ("parallelism", "parallel_config.tensor_parallel_size", 2),
        ("parallelism", "parallel_config.pipeline_parallel_size", 2),
        ("parallelism", "parallel_config.prefill_context_parallel_size", 2),
        ("parallelism", "parallel_config.decode_context_parallel_size", 2),
        ("data parallelism", "parallel_config.data_parallel_size", 2),
        ("speculative decoding", "speculative_config", SimpleNamespace()),
        ("LoRA", "lora_config", SimpleNamespace()),
        ("XD-RoPE", "uses_xdrope_dim", 4),
        ("encoder-decoder", "model_config.is_encoder_decoder", True),
        ("another block table", "input_batch.block_table.block_tables", [object()]),
        ("no KV groups", "input_batch.block_table.block_tables", []),
        ("Mamba state of speculative decoding", "mamba_prev_last_scheduled_idx", object()),
    ],
)
def test_each_service_condition_closes_the_gate(
    runner: Any, name: str, path: str, value: Any
) -> None:
    from bench_prep.fastpath.gates import closed_service_gate

    reason = closed_service_gate(_Changed(runner, path.split("."), value))
    assert reason is not None
    assert reason.startswith(name + ":")


def test_a_replaced_method_closes_the_gate(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench_prep.fastpath.gates import closed_service_gate

    monkeypatch.setitem(vars(runner), "_prepare_input_ids", lambda *_: None)
    reason = closed_service_gate(runner)
    assert reason == (
        "replaced method: _prepare_input_ids of this CPUModelRunner is not vLLM's own"
    ).replace("CPUModelRunner", type(runner).__name__)


def test_async_scheduling_must_be_what_the_device_needs(runner: Any) -> None:
    from bench_prep.fastpath.gates import closed_service_gate

    changed = _Changed(runner, ["use_async_scheduling"], not runner.use_async_scheduling)
    assert str(closed_service_gate(changed)).startswith("async scheduling:")


def test_an_edited_method_closes_the_gate(runner: Any) -> None:
    from bench_prep.fastpath import attach
    from bench_prep.fastpath.fingerprint import known_source

    class Edited(type(runner)):  # type: ignore[misc]
        def _prepare_inputs(self, *arguments: Any) -> Any:
            return super()._prepare_inputs(*arguments)

    assert known_source(type(runner), runner.device.type) is not None
    assert known_source(Edited, runner.device.type) is None
    original = runner.__class__
    runner.__class__ = Edited
    try:
        with pytest.raises(Missing, match="unknown runner source"):
            attach(runner)
    finally:
        runner.__class__ = original


def closed(decoder: Any, output: Any = None) -> str | None:
    return asked(decoder, output)[0]


def asked(decoder: Any, output: Any = None) -> tuple[str | None, list[tuple[Any, ...]]]:
    """The gate's answer, and what it called."""
    from bench_prep.fastpath.block_tables import Marks
    from bench_prep.fastpath.gates import step_gate

    calls: list[tuple[Any, ...]] = []
    gate = step_gate(decoder.runner, Marks(), lambda *facts: calls.append(facts))
    return gate(output or decoder._output), calls


def test_the_step_gate_is_open_in_decode(decoder: Any) -> None:
    reason, calls = asked(decoder)
    assert reason is None
    request, token = decoder.runner.requests["bench-prep"], calls[0][2]
    assert calls == [(decoder.position, request, token)]
    assert token is decoder.runner.input_batch.prev_sampled_token_ids


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("several tokens", {"total_num_scheduled_tokens": 2}),
        ("encoder input", {"scheduled_encoder_inputs": {"bench-prep": [0]}}),
        ("draft tokens", {"scheduled_spec_decode_tokens": {"bench-prep": [5]}}),
    ],
)
def test_each_condition_on_the_scheduler_output(
    decoder: Any, reason: str, fields: dict[str, Any]
) -> None:
    found = asked(decoder, dataclasses.replace(decoder._output, **fields))
    assert found == (reason, [])


def test_each_condition_on_the_batch(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench_prep.fastpath.block_tables import Marks
    from bench_prep.fastpath.gates import step_gate

    batch, position = decoder.runner.input_batch, decoder.position

    def change(array: Any, value: int) -> str | None:
        before = int(array[0])
        array[0] = value
        try:
            return closed(decoder)
        finally:
            array[0] = before

    assert change(decoder.runner.optimistic_seq_lens_cpu, position - 1) == (
        "last length is not the position"
    )
    request = decoder.runner.requests["bench-prep"]
    with monkeypatch.context() as patch:
        patch.setattr(request, "num_prompt_tokens", position + 1)
        assert closed(decoder) == "still in the prompt"
    tokens = request.output_token_ids
    tokens.append(1)
    assert closed(decoder) == "tokens not continuous with the position"
    tokens.pop()
    batch._req_ids.append("another")
    assert closed(decoder) == "several requests"
    batch._req_ids.pop()
    gate = step_gate(decoder.runner, Marks(), lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(decoder.runner, "input_batch", object())
        assert gate(decoder._output) == "batch replaced"
    assert closed(decoder) is None


def test_each_condition_on_the_sampled_token(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = decoder.runner.input_batch
    if decoder.runner.device.type == "cpu":
        monkeypatch.setattr(batch, "prev_sampled_token_ids", torch.zeros(1, 1, dtype=torch.int32))
        assert closed(decoder) == "sampled token of another kind"
        return
    device = decoder.runner.device
    for tensor in (
        torch.zeros(1, 1, dtype=torch.int64, device=device),
        torch.zeros(2, 1, dtype=torch.int32, device=device),
        torch.zeros(1, 1, dtype=torch.int32),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(batch, "prev_sampled_token_ids", tensor)
            assert closed(decoder) == "sampled token of another kind"
    with monkeypatch.context() as patch:
        patch.setattr(batch, "prev_sampled_token_ids", None)
        assert closed(decoder) == "no sampled token on the device"
    for rows in (None, {}, {"bench-prep": 1}):
        with monkeypatch.context() as patch:
            patch.setattr(batch, "prev_req_id_to_index", rows)
            assert closed(decoder) == "not at index 0 in the previous step"


def test_every_reason_is_tested_here() -> None:
    from pathlib import Path

    from bench_prep.fastpath.gates import SERVICE_GATE, STEP_REASONS

    text = Path(__file__).read_text(encoding="utf-8")
    names = [*STEP_REASONS, *(condition.name for condition in SERVICE_GATE)]
    assert [name for name in names if name not in text] == []


def test_other_m_rope_rows_close_the_gate(runner: Any) -> None:
    from bench_prep.fastpath.gates import closed_service_gate

    rows = SimpleNamespace(gpu=torch.zeros(2, 5))
    changed = _Changed(runner, ["mrope_positions"], rows)
    assert closed_service_gate(changed) is None  # not used without M-RoPE
    changed = _Changed(changed, ["uses_mrope"], True)
    assert str(closed_service_gate(changed)).startswith("M-RoPE rows:")


class _Changed:
    """A view of an object in which one attribute, given by its path, has another value."""

    def __init__(self, original: Any, path: list[str], value: Any) -> None:
        self._original = original
        self._name = path[0]
        self._value = (
            value if len(path) == 1 else _Changed(getattr(original, path[0]), path[1:], value)
        )

    def __getattr__(self, name: str) -> Any:
        return self._value if name == self._name else getattr(self._original, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._original.__class__

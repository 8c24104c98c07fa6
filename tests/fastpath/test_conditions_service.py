"""Every condition of the service gate earns its place.

For a first line of defence there is a runner whose state differs from its twin's once the
condition is removed. Removing a second line leaves the twins equal, for the runners that can be
made here.
"""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_prep.child.device import has_device
from bench_prep.fastpath import gates
from bench_prep.prove.source.twins import Twins
from bench_prep.settings import RunSettings
from tests.fastpath.removal import SETTINGS, difference, remove_service_condition, twins

pytestmark = pytest.mark.vllm
MROPE = SETTINGS.model_copy(update={"mrope": True})
#: How each first line is shown; a test below has this name.
FIRST_LINE = {
    "unknown runner source": "test_an_edited_preparation",
    "another block table": "test_a_block_table_of_another_class",
    "parallelism": "test_decode_context_parallel",
    "speculative decoding": "test_speculative_decoding",
    "LoRA": "test_lora",
    "XD-RoPE": "test_xd_rope",
    "no KV groups": "test_no_kv_groups",
    "replaced method": "test_a_method_replaced_on_the_runner",
}


def test_each_condition_is_a_first_or_a_second_line() -> None:
    first = {c.name for c in gates.SERVICE_GATE if c.second_line is None}
    assert first == set(FIRST_LINE)
    assert all(name in globals() for name in FIRST_LINE.values())


def decode(both: Twins) -> None:
    first = both.arrive(20)
    for _ in range(5):
        both.step()
    both.arrive(9)
    both.step()
    both.finish(first)
    for _ in range(20):
        both.step()


def engine(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Runners are made with these engine arguments too."""
    from vllm.engine import arg_utils

    monkeypatch.setattr(arg_utils, "EngineArgs", functools.partial(arg_utils.EngineArgs, **fields))


def differs_without(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    settings: RunSettings = SETTINGS,
    closes: bool = True,
    **options: Any,
) -> str | None:
    """The difference once the condition is removed; with it the gate must be closed."""
    from bench_prep.errors import Missing

    if closes:
        with pytest.raises(Missing, match=f"{name}:"):
            twins(settings, **options)
    remove_service_condition(monkeypatch, name)
    both, candidate = twins(settings, **options)
    found = difference(both, candidate, decode)
    assert found is not None or candidate.dispatched + candidate.fallbacks.total() > 20
    return found


def test_an_edited_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another source writes something else; here a position is shifted."""
    from bench_prep.fastpath import preparer
    from bench_prep.fastpath.fingerprint import known_source

    def edit(runner: Any) -> None:
        own = type(runner)

        class Edited(own):  # type: ignore[misc, valid-type]
            def _prepare_inputs(self, *arguments: Any) -> Any:
                result = super()._prepare_inputs(*arguments)
                self.positions[0] += 1
                return result

        runner.__class__ = Edited
        monkeypatch.setattr(preparer, "known_source", lambda _, kind: known_source(own, kind))

    assert differs_without("unknown runner source", monkeypatch, each=edit) is not None


def test_a_block_table_of_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may do more in a commit than copy, so that none can be left out."""
    from vllm.v1.worker.block_table import BlockTable

    class Counting(BlockTable):
        commits = 0

        def commit_block_table(self, num_reqs: int) -> None:
            self.commits += 1
            super().commit_block_table(num_reqs)

    def replace(runner: Any) -> None:
        for table in runner.input_batch.block_table.block_tables:
            table.__class__ = Counting

    found = differs_without("another block table", monkeypatch, each=replace)
    assert found is not None
    assert "commits" in found


def test_a_method_replaced_on_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(runner: Any) -> None:
        def mine(*args: Any) -> Any:
            runner.calls.append(1)
            return type(runner)._prepare_input_ids(runner, *args)

        runner.calls, runner._prepare_input_ids = [], mine

    found = differs_without("replaced method", monkeypatch, each=replace)
    assert found is not None
    assert "calls" in found


class NgramProposer:
    """Proposes nothing. vLLM's own imports numba, behind which vLLM's CPU platform cannot find its
    kernels a second time in one process."""

    def __init__(self, config: Any) -> None:
        pass

    def propose(self, most: int, sampled: list[Any], *others: Any, **more: Any) -> list[list[int]]:
        return [[] for _ in sampled]


class Drafting(Twins):
    """Compares what a step of no drafts writes beyond any other."""

    def _states(self, sampled: list[Any] | None = None) -> list[Any]:
        return [
            (runner.num_decode_draft_tokens.np, result[1] is None)
            for runner, result in zip(self.runners, self.results, strict=True)
        ]


@pytest.mark.skipif(has_device(), reason="vLLM 0.26 turns async scheduling off for n-grams")
def test_speculative_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without drafts is one of zero drafts, with indices of its own."""
    module = SimpleNamespace(NgramProposer=NgramProposer)
    monkeypatch.setitem(sys.modules, "vllm.v1.spec_decode.ngram_proposer", module)
    engine(
        monkeypatch,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 3,
        },
    )
    assert differs_without("speculative decoding", monkeypatch, kind=Drafting) is not None


class Adapters:
    """Takes the place of the manager that is made with the model: what was it asked for?"""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def set_active_adapters(self, requests: Any, mapping: Any) -> None:
        self.asked.append(f"{requests} {mapping}")


def test_lora(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, enable_lora=True, max_lora_rank=8)

    def manage(runner: Any) -> None:
        runner.lora_manager = Adapters()

    assert differs_without("LoRA", monkeypatch, each=manage) is not None


@pytest.mark.gpu
def test_decode_context_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of two: every second token's slot is another rank's. The CPU platform has none."""

    def first_of_two_ranks(runner: Any) -> None:
        for table in runner.input_batch.block_table.block_tables:
            table.dcp_world_size = 2

    found = differs_without("parallelism", monkeypatch, closes=False, each=first_of_two_ranks)
    assert found is not None
    assert "slot_mapping" in found


def _xd_rope_positions(request: Any) -> None:
    request.xdrope_positions = torch.arange(request.num_prompt_tokens).repeat(4, 1)


@pytest.mark.gpu
def test_xd_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if not hasattr(GPUModelRunner, "_calc_xdrope_positions"):
        pytest.skip("this vLLM has M-RoPE of four rows instead")
    engine(monkeypatch, hf_overrides={"xdrope_section": [8, 8, 8, 8]})

    def from_the_model(runner: Any) -> None:
        runner._init_xdrope_positions = _xd_rope_positions

    found = differs_without("XD-RoPE", monkeypatch, each=from_the_model)
    assert found is not None
    assert "xdrope_positions" in found


def test_no_kv_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch of no programs writes nothing on a device; the host's writes need no group."""
    stateless = SETTINGS.model_copy(update={"block_sizes": ()})
    found = differs_without("no KV groups", monkeypatch, stateless)
    assert (found is not None) == has_device()


def test_m_rope_of_four_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's side has as many rows as vLLM's; vLLM 0.26 has always three."""
    from bench_prep.decode import model
    from bench_prep.prove.source import twins as differential

    rows = torch.arange(4)[:, None]

    def positions(request: Any) -> None:
        request.mrope_positions = torch.arange(request.num_prompt_tokens) + rows
        request.mrope_position_delta = -3

    monkeypatch.setitem(model._MROPE, "mrope_section", [8, 8, 8, 8])
    monkeypatch.setattr(differential, "_image_positions", positions)
    runner = twins_runner(MROPE)
    if runner.mrope_positions.gpu.shape[0] == 3:
        pytest.skip("this vLLM has three rows whatever the model")
    assert differs_without("M-RoPE rows", monkeypatch, MROPE) is None


def twins_runner(settings: RunSettings) -> Any:
    from bench_prep.decode.runner import make_runners

    return make_runners(settings, 1)[0]


def test_an_architecture_that_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench_prep.decode import model
    from bench_prep.fastpath.fingerprint import known

    monkeypatch.setitem(known(), "architectures", ["Qwen2ForCausalLM"])
    monkeypatch.setitem(model._CONFIG, "architectures", ["LlamaForCausalLM"])
    monkeypatch.setitem(model._CONFIG, "model_type", "llama")
    assert differs_without("unlisted architecture", monkeypatch) is None


def test_encoder_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, hf_overrides={"is_encoder_decoder": True})
    whole_prompts = SETTINGS.model_copy(update={"max_num_tokens": SETTINGS.max_model_len})
    assert differs_without("encoder-decoder", monkeypatch, whole_prompts) is None


@pytest.mark.gpu
def test_without_async_scheduling_no_step_is_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench_prep.fastpath.gates import NO_SAMPLED_TOKEN

    engine(monkeypatch, async_scheduling=False)
    remove_service_condition(monkeypatch, "async scheduling")
    both, candidate = twins()
    assert difference(both, candidate, decode) is None
    assert candidate.dispatched == 0
    assert candidate.fallbacks[NO_SAMPLED_TOKEN] > 15


def test_the_cpu_platform_turns_async_scheduling_off(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, async_scheduling=True)
    runner = twins_runner(SETTINGS)
    assert runner.use_async_scheduling == (runner.device.type != "cpu")


@pytest.mark.parametrize("attention", [False, True])
def test_dummy_runs_between_the_steps(attention: bool) -> None:
    """What data parallelism adds: dummy runs write the step's buffers, which are written again."""
    both, candidate = twins()

    def idling(both: Twins) -> None:
        both.arrive(20)
        for count in (1, 6, 4, 2):
            both.step()
            both.dummy_run(count, attention)
            both.step()

    assert difference(both, candidate, idling) is None
    assert candidate.dispatched > 2


def test_mamba_state_of_speculative_decoding_needs_speculative_decoding() -> None:
    runner = twins_runner(SETTINGS)
    assert getattr(runner, "mamba_prev_last_scheduled_idx", None) is None
    assert runner.num_spec_tokens == 0


def test_another_device_s_runner_has_the_cuda_runner_s_source() -> None:
    """So that the source alone does not tell the devices apart."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.xpu_model_runner import XPUModelRunner

    from bench_prep.fastpath.fingerprint import fingerprint

    assert fingerprint(XPUModelRunner, "xpu") == fingerprint(GPUModelRunner, "cuda")

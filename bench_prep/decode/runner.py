"""A real vLLM `GPUModelRunner` (V1) without a model: configuration, distributed state, batch.

Everything here is vLLM's own: the engine configuration comes from `EngineArgs`, the runner and
its `InputBatch` from vLLM's constructors, so that `_update_states` and `_prepare_inputs` run as
in a service. Only the forward pass is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench_prep.decode.model import write_model_folder
from bench_prep.errors import Missing, UsageError
from bench_prep.settings import RunSettings


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """What a hybrid model's KV groups have beyond their block sizes.

    `state_groups` groups of recurrent state follow the attention groups: one block per request
    and no slots. `kernel_block_sizes` are the attention groups', in tokens; None: their own.
    """

    state_groups: int = 0
    kernel_block_sizes: tuple[int, ...] | None = None


def splits_blocks() -> bool:
    """Whether this vLLM's block tables know kernel block sizes: up to 0.26 or so."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    parameters = inspect.signature(GPUModelRunner.may_reinitialize_input_batch).parameters
    return "kernel_block_sizes" in parameters


def make_runners(settings: RunSettings, count: int, hybrid: Hybrid = Hybrid()) -> list[Any]:
    """`count` identical runners in one process, on the device that vLLM's platform names.

    Raises:
        Missing: vLLM has no V1 runner here, or its platform has no usable device.
        UsageError: a block size that the platform's attention does not accept.
    """
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        raise Missing(
            "vLLM found no device that it supports on this machine",
            "on a machine without a GPU use a CPU build of vLLM and --device cpu",
        )
    with tempfile.TemporaryDirectory(prefix="bench-prep-model-") as folder:
        config = _engine_config(settings, Path(folder))
        _initialize_platform(config, Path(folder))
        with _current_config(config):
            _check_block_sizes(config, hybrid.kernel_block_sizes or settings.block_sizes)
            runners = [_make_runner(config, settings, hybrid) for _ in range(count)]
    _same_uninitialized_memory(runners)
    return runners


def _engine_config(settings: RunSettings, folder: Path) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    write_model_folder(folder, max_model_len=settings.max_model_len, mrope=settings.mrope)
    return EngineArgs(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_reqs,
        max_num_batched_tokens=settings.max_num_tokens,
        enable_prompt_embeds=settings.prompt_embeds,
        enable_prefix_caching=False,
        enforce_eager=True,
    ).create_engine_config()


def _initialize_platform(config: Any, folder: Path) -> None:
    """What a vLLM worker does before it makes its runner."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

    current_platform.import_kernels()
    register = getattr(current_platform, "register_triton_kernel_overrides", None)
    if register is not None:
        register()
    if current_platform.device_type != "cpu":
        torch.cuda.set_device(0)
    with _current_config(config):
        init_worker_distributed_environment(
            config, 0, f"file://{folder}/rendezvous", 0, current_platform.dist_backend
        )


@contextlib.contextmanager
def _current_config(config: Any) -> Iterator[None]:
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config):
        yield


def _make_runner(config: Any, settings: RunSettings, hybrid: Hybrid) -> Any:
    from vllm.platforms import current_platform
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
    )

    if current_platform.device_type == "cpu":
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner as Runner
    else:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner as Runner
    device = torch.device("cpu" if current_platform.device_type == "cpu" else "cuda:0")
    runner = Runner(config, device)

    model = config.model_config
    groups = [
        KVCacheGroupSpec(
            layer_names=[f"layer.{index}"],
            kv_cache_spec=FullAttentionSpec(
                block_size=block_size,
                num_kv_heads=model.get_num_kv_heads(config.parallel_config),
                head_size=model.get_head_size(),
                dtype=model.dtype,
            ),
        )
        for index, block_size in enumerate(settings.block_sizes)
    ]
    groups += [
        KVCacheGroupSpec(
            layer_names=[f"state.{index}"],
            kv_cache_spec=MambaSpec(
                block_size=settings.max_model_len, shapes=((1,),), dtypes=(torch.float32,)
            ),
        )
        for index in range(hybrid.state_groups)
    ]
    blocks = sum(-(-settings.max_model_len // size) for size in settings.block_sizes) + 1
    kv_cache_config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    runner.kv_cache_config = kv_cache_config
    kernel_sizes = [*(hybrid.kernel_block_sizes or settings.block_sizes)]
    kernel_sizes += [settings.max_model_len] * hybrid.state_groups
    # Later they are the groups' own.
    extra = [kernel_sizes] if splits_blocks() else []
    runner.may_reinitialize_input_batch(kv_cache_config, *extra)
    if device.type == "cpu":
        # The new batch's device buffers are the host's, as after the constructor.
        runner._postprocess_tensors()
    if runner.uses_mrope:
        # vLLM asks the model for these; a text prompt has equal rows and an image shifts what
        # follows it, which the non-zero delta stands for.
        runner._init_mrope_positions = _text_mrope_positions
    return runner


MROPE_POSITION_DELTA = -5


def _text_mrope_positions(request: Any) -> None:
    positions = torch.arange(request.num_prompt_tokens, dtype=torch.int64).repeat(3, 1)
    request.mrope_positions = positions
    request.mrope_position_delta = MROPE_POSITION_DELTA


def _check_block_sizes(config: Any, block_sizes: tuple[int, ...]) -> None:
    """Refuse what the platform's attention kernels cannot address.

    vLLM's CPU attention picks its 16-wide variant for block sizes that are no multiple of 32, so
    its declared multiples of 32 are a preference there; 16 is what its kernels require.
    """
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        bad = [size for size in block_sizes if size % 16]
        accepted = "multiples of 16"
    else:
        from vllm.v1.attention.backend import MultipleOf
        from vllm.v1.attention.selector import get_attn_backend

        model = config.model_config
        backend = get_attn_backend(model.get_head_size(), model.dtype, None)
        supported = backend.get_supported_kernel_block_sizes()

        def fits(size: int) -> bool:
            return any(
                size % kind.base == 0 if isinstance(kind, MultipleOf) else size == kind
                for kind in supported
            )

        bad = [size for size in block_sizes if not fits(size)]
        accepted = ", ".join(
            f"multiples of {kind.base}" if isinstance(kind, MultipleOf) else str(kind)
            for kind in supported
        )
    if bad:
        raise UsageError(
            f"--block-sizes: the attention of this platform does not accept {bad[0]}",
            f"accepted: {accepted}",
        )


def _same_uninitialized_memory(runners: list[Any]) -> None:
    """Copy the first runner's bytes into the others.

    vLLM allocates some buffers without filling them; with the same bytes in them to begin with,
    every later difference between twins is a difference in what was written.
    """
    from bench_prep.snapshot import leaves

    reference = dict(leaves(runners[0]))
    for runner in runners[1:]:
        for path, value in leaves(runner):
            source = reference.get(path)
            if isinstance(value, torch.Tensor) and isinstance(source, torch.Tensor):
                value.copy_(source)
            elif hasattr(value, "__array_interface__") and source is not None:
                value[...] = source

"""What a proof asks of vLLM's worker, in the worker's own process (`worker_extension_cls`)."""

from __future__ import annotations

from typing import Any

from bench_prep.engine.vllm import weights  # noqa: F401  registers the load format
from bench_prep.prove.model.wrong_slot import WrongSlot


class ProbedWorker:
    """Methods for `LLM.collective_rpc`; vLLM adds them to its worker class."""

    model_runner: Any

    def engine_facts(self) -> dict[str, Any]:
        """What is served, on what; block sizes in tokens, one KV group each.

        `block_size` is the cache manager's, `table_block_size` the kernels'; groups without slots
        (recurrent state) are not `slots`.
        """
        runner = self.model_runner
        tables = runner.input_batch.block_table.block_tables
        groups = runner.kv_cache_config.kv_cache_groups
        return {
            "runner": f"{type(runner).__module__}.{type(runner).__qualname__}",
            "device": str(runner.device),
            "dtype": str(runner.dtype),
            "architectures": list(runner.model_config.hf_config.architectures),
            "vocab_size": runner.model_config.get_vocab_size(),
            "mrope": bool(runner.uses_mrope),
            "groups": [
                {
                    "kind": type(group.kv_cache_spec).__name__,
                    "layers": len(group.layer_names),
                    "block_size": group.kv_cache_spec.block_size,
                    "table_block_size": table.block_size,
                    "slots": table.slot_mapping_mode.name == "TOKEN_TO_KV_SLOT",
                }
                for group, table in zip(groups, tables, strict=True)
            ],
        }

    def fast_path_counts(self) -> dict[str, Any] | None:
        """Steps so far by the fast path, and by vLLM's own path by reason; None: not attached."""
        path = self.model_runner._prepare_inputs
        if not hasattr(path, "dispatched"):
            return None
        return {"dispatched": path.dispatched, "fallbacks": dict(path.fallbacks)}

    def plant_wrong_slot(self, group: int) -> None:
        """From now on the fast path is wrong, once, in one slot of this KV group."""
        WrongSlot(self.model_runner, group)

    def remove_wrong_slot(self) -> int | None:
        """The position of the wrong slot, None if there was none; the fast path is right again."""
        fault: WrongSlot = self.model_runner._prepare_inputs
        return fault.remove()

"""The fast path compared with vLLM's own path in the live service, on the runner's own state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bench_prep.fastpath.log_lines import CHECK_FAILED
from bench_prep.snapshot import difference_between, leaves

#: Attributes of a live runner that no preparation reads or writes, and that are large.
NOT_PREPARED = {
    "_prepare_inputs": "this object",
    "_bench_prep": "the fast path",
    "kv_caches": "the KV cache itself",
    "attn_groups": "metadata builders, which run after the preparation",
    "cudagraph_dispatcher": "graphs of the forward pass",
    "encoder_cache": "outputs of the encoder",
    "compilation_config": "configuration, with every layer",
}


class SelfCheck:
    """Called like a `FastPath`; every `every`th dispatched step is prepared by both paths.

    The state before the step is put back between the two, so that what either of them leaves
    unwritten is seen too. vLLM's own result is the one that the service goes on with. After the
    first difference the fast path is closed for the process.
    """

    def __init__(self, path: Any, runner: Any, every: int) -> None:
        self.path = path
        self._runner = runner
        self._every = every

    def __call__(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        """Prepare one step; arguments and result are those of `_prepare_inputs`."""
        path = self.path
        if path.closed is not None or (path.dispatched + 1) % self._every:
            return path(scheduler_output, num_scheduled_tokens)
        try:
            return self._checked(scheduler_output, num_scheduled_tokens)
        except Exception as error:  # such as no memory for the copies
            path.close(f"a self-check failed ({type(error).__name__}: {error})")
            return path.own_path(scheduler_output, num_scheduled_tokens)

    def _checked(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        path = self.path
        path.look(instances=True)
        before = dict(self._copied(None))
        dispatched = path.dispatched
        result = path(scheduler_output, num_scheduled_tokens)
        if path.dispatched == dispatched:
            return result
        found = dict(self._copied(result))
        self._put_back(before)
        path.mark_dirty()
        expected_result = path.own_path(scheduler_output, num_scheduled_tokens)
        difference = difference_between(dict(self._copied(expected_result)), found)
        path.counters.checked += 1
        if difference is not None:
            path.close(f"{CHECK_FAILED}: {difference}")
        return expected_result

    def _leaves(self, result: Any) -> Iterator[tuple[str, Any]]:
        return leaves((self._runner, result), without=NOT_PREPARED)

    def _copied(self, result: Any) -> Iterator[tuple[str, Any]]:
        self._synchronize()
        for path, value in self._leaves(result):
            if isinstance(value, torch.Tensor):
                yield path, value.clone()
            else:
                yield path, value.copy() if isinstance(value, np.ndarray) else value

    def _put_back(self, before: dict[str, Any]) -> None:
        for path, value in self._leaves(None):
            earlier = before.get(path)
            if isinstance(value, torch.Tensor) and isinstance(earlier, torch.Tensor):
                value.copy_(earlier)
            elif isinstance(value, np.ndarray) and isinstance(earlier, np.ndarray):
                value[...] = earlier
        self._synchronize()

    def _synchronize(self) -> None:
        """Host buffers may still be on their way to the device, and its results to the host."""
        if self._runner.device.type != "cpu":
            torch.cuda.synchronize(self._runner.device)

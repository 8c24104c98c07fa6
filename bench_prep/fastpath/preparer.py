"""The preparation that takes `_prepare_inputs`' place: gates, dirty checks, mirrors, launch."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import torch

from bench_prep.errors import Missing
from bench_prep.fastpath.block_tables import TrackedTable
from bench_prep.fastpath.fingerprint import known_source
from bench_prep.fastpath.gates import StepGate, closed_service_gate
from bench_prep.fastpath.mirrors import Mirrors
from bench_prep.fastpath.targets import find_targets


class Writer(Protocol):
    """Writes the device side of the step that computes the token at `position`."""

    def write(self, position: int, mrope_position: int, sampled: Any) -> None: ...


class FastPath:
    """Called like `GPUModelRunner._prepare_inputs`, with the same result and the same state.

    Attributes:
        dispatched: steps prepared by the fast path.
        fallbacks: steps left to vLLM's own path, by the step gate's reason.
    """

    def __init__(self, runner: Any) -> None:
        source = known_source(type(runner), runner.device.type)
        assert source is not None, "the service gate was not asked"
        self.dispatched = 0
        self.fallbacks: Counter[str] = Counter()
        self._own_path = runner._prepare_inputs
        self._gate = StepGate(runner)
        self._mirrors = Mirrors(runner)
        self._uses_mrope = bool(runner.uses_mrope)
        targets = find_targets(runner)
        self._tables = [TrackedTable(t) for t in runner.input_batch.block_table.block_tables]
        if runner.device.type == "cpu":
            from bench_prep.fastpath.host_writer import HostWriter

            self._writer: Writer = HostWriter(targets)
            self._previous_index = -1  # no sampled token is left on a device
        else:
            from bench_prep.fastpath.device_writer import DeviceWriter

            self._writer = DeviceWriter(targets)
            self._previous_index = 0
        logits_indices = torch.zeros(1, dtype=torch.int32, device=runner.device)
        # Up to 0.26 the result has two parts; later the most tokens sampled by a request follow.
        self._result = (logits_indices, None, 1)[: source.returns]

    def __call__(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        """Prepare one step; arguments and result are those of `_prepare_inputs`."""
        gate = self._gate
        reason = gate.check(scheduler_output)
        if reason is not None:
            self.fallbacks[reason] += 1
            return self._own_path(scheduler_output, num_scheduled_tokens)
        for table in self._tables:
            if table.dirty:
                table.commit(1)
        position = gate.position
        mrope_position = position + gate.request.mrope_position_delta if self._uses_mrope else 0
        self._mirrors.write(position, mrope_position, self._previous_index)
        self._writer.write(position, mrope_position, gate.sampled)
        self.dispatched += 1
        return self._result

    def detach(self) -> None:
        """Give the runner's block tables their own methods back."""
        for table in self._tables:
            table.detach()


def attach(runner: Any) -> FastPath:
    """The fast path for a runner whose service gate is open.

    Raises:
        Missing: the gate is closed; the message names the condition.
    """
    reason = closed_service_gate(runner)
    if reason is not None:
        raise Missing(
            f"the fast path does not serve this runner ({reason})",
            "compare an edited worktree with another by --against, or time another --candidate",
        )
    return FastPath(runner)

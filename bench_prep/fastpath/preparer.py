"""The preparation that takes `_prepare_inputs`' place: gates, dirty checks, mirrors, launch."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch

from bench_prep.errors import Missing
from bench_prep.fastpath import events
from bench_prep.fastpath.block_tables import Marks, TrackedTable
from bench_prep.fastpath.counters import Counters
from bench_prep.fastpath.fingerprint import known_source
from bench_prep.fastpath.gates import Dispatch, closed_service_gate, step_gate
from bench_prep.fastpath.mirrors import Mirrors
from bench_prep.fastpath.standing import Standing, replaced_on
from bench_prep.fastpath.targets import find_targets


class Writer(Protocol):
    """Writes the device side of the step that computes the token at `position`."""

    def write_fixed(self) -> None: ...

    def write(self, position: int, mrope_position: int, sampled: Any) -> None: ...


#: How the reason begins when vLLM was changed while its service runs.
REPLACED = "vLLM was changed"
#: Why no step is dispatched any more after `FastPath.close`.
CLOSED = "closed for this process"


class FastPath:
    """Called like `GPUModelRunner._prepare_inputs`, with the same result and the same state.

    Attributes:
        own_path: vLLM's own preparation.
        counters: which steps took which path.
    """

    def __init__(self, runner: Any) -> None:
        source = known_source(type(runner), runner.device.type)
        assert source is not None, "the service gate was not asked"
        self.counters = Counters()
        self.own_path = runner._prepare_inputs
        self._runner = runner
        self._batch = runner.input_batch
        self._mirrors = Mirrors(runner)
        self._marks = Marks()
        self._uses_mrope = bool(runner.uses_mrope)
        targets = find_targets(runner)
        if runner.device.type == "cpu":
            from bench_prep.fastpath.host_writer import HostWriter

            writer: Writer = HostWriter(targets)
            self._previous_index = -1  # no sampled token is left on a device
        else:
            from bench_prep.fastpath.device_writer import DeviceWriter

            writer = DeviceWriter(targets)
            self._previous_index = 0
        self.use(writer)
        logits_indices = torch.zeros(1, dtype=torch.int32, device=runner.device)
        # Up to 0.26 the result has two parts; later the most tokens sampled by a request follow.
        self._result = (logits_indices, None, 1)[: source.returns]
        # Last, because it is the only thing that changes the runner.
        self._tables: list[TrackedTable] = []
        self._marked: Any = None
        self._standing = Standing(runner)
        self.track()

    def __call__(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        """Prepare one step; arguments and result are those of `_prepare_inputs`."""
        try:
            if self._standing.touched():
                self.look()
            reason = self._gate(scheduler_output)
            if reason is None:
                return self._result
        except Exception as error:
            # vLLM's own path writes all that may be half-written now.
            self.close(f"{type(error).__name__}: {error}")
            reason = CLOSED
        self._marks.written()
        self.counters.fall_back(
            reason, decode=self._all_decode(scheduler_output, num_scheduled_tokens)
        )
        return self.own_path(scheduler_output, num_scheduled_tokens)

    def look(self, *, instances: bool = False) -> None:
        """Close if something that the fast path relies on is not what stood there at first.

        `instances`: also what the runner's objects have instead of their classes' methods.
        """
        reason = self._standing.changed()
        if reason is None and instances:
            reason = replaced_on(self._runner, ("_prepare_inputs", "_dummy_run"))
            if vars(self._runner).get("_dummy_run") is not self._marked:
                reason = reason or "_dummy_run of this runner was replaced"
        if reason is not None and self.closed is None:
            self.close(f"{REPLACED}: {reason}")

    def use(self, writer: Writer) -> None:
        """Let `writer` write the device side from the next step on; a closed path stays closed."""
        self._writer = writer
        self._marks.written()
        if self.closed is not None:
            return
        self._gate: Callable[[Any], str | None] = step_gate(
            self._runner, self._marks, self._dispatching()
        )

    def _dispatching(self) -> Dispatch:
        """What a dispatched step does (`step_gate` says why it is a closure)."""
        marks, counters, uses_mrope = self._marks, self.counters, self._uses_mrope
        launch, mirror = self._writer.write, self._mirrors.write
        refresh = self._refresh

        def dispatch(position: int, request: Any, sampled: Any) -> None:
            mrope_position = position + request.mrope_position_delta if uses_mrope else 0
            if marks.stale:
                refresh(position)
            # The device first: it works while the host's mirrors are written.
            launch(position, mrope_position, sampled)
            mirror(position, mrope_position)
            counters.dispatched += 1

        return dispatch

    def _refresh(self, position: int) -> None:
        """Write what the steps before have not left as it must be."""
        for table in self._tables:
            table.commit(1)
        marks = self._marks
        if not marks.fixed:
            self._mirrors.write_fixed(self._previous_index)
            self._writer.write_fixed()
            marks.fixed = True
        marks.stale = False
        if not self.counters.dispatched:
            events.first_dispatch(position)

    def _all_decode(self, scheduler_output: Any, num_scheduled_tokens: Any) -> bool:
        """Whether every request of the step gets one new token behind its prompt."""
        count = len(num_scheduled_tokens)
        if scheduler_output.total_num_scheduled_tokens != count:
            return False
        batch = self._batch
        return bool(
            (batch.num_computed_tokens_cpu[:count] >= batch.num_prompt_tokens[:count]).all()
        )

    @property
    def dispatched(self) -> int:
        """Steps prepared by the fast path."""
        return self.counters.dispatched

    @property
    def fallbacks(self) -> Counter[str]:
        """Steps left to vLLM's own path, by the step gate's reason."""
        return self.counters.fallbacks

    @property
    def closed(self) -> str | None:
        """Why no step is dispatched any more, or None."""
        return self.counters.closed

    def mark_dirty(self) -> None:
        """Something else wrote the runner's buffers: the next step writes all of them anew."""
        self._marks.written()
        for table in self._tables:
            table.mark()

    def close(self, reason: str) -> None:
        """Dispatch no step any more: vLLM's own path goes on, its block tables untracked."""
        self.counters.closed = reason
        self._gate = lambda _: CLOSED
        self.detach()
        events.closed_for_good(reason)

    def track(self) -> None:
        """Hear of what else writes the runner's buffers; the next step writes all of them.

        Block tables are tracked, and a dummy run writes the input buffers and, behind the tables'
        marks, the block tables.
        """
        self.detach()
        self._marks.written()
        tables = self._batch.block_table.block_tables
        self._tables = [TrackedTable(table, self._marks) for table in tables]
        dummy_run = self._runner._dummy_run

        @functools.wraps(dummy_run)
        def marked(*args: Any, **kwargs: Any) -> Any:
            try:
                return dummy_run(*args, **kwargs)
            finally:
                self.mark_dirty()

        self._runner._dummy_run = self._marked = marked

    def detach(self) -> None:
        """Give the runner and its block tables their own methods back."""
        own = vars(self._runner)
        if self._marked is not None and own.get("_dummy_run") is self._marked:
            before = self._marked.__wrapped__
            del own["_dummy_run"]
            if self._runner._dummy_run != before:  # it was not the class's
                self._runner._dummy_run = before
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

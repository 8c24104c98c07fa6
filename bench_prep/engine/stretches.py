"""A/B/A inside a running engine: stretches of steps by vLLM's own path and by the fast path.

In the worker's own process, on one request in decode. The engine around the preparation is as it
is in a service: other threads run, caches are cold, the device is busy with the step before.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from bench_prep.engine.vllm import weights  # noqa: F401  registers the load format
from bench_prep.fastpath.preparer import FastPath
from bench_prep.fastpath.selfcheck import SelfCheck
from bench_prep.measure.clocks import CudaDevice
from bench_prep.measure.disturbances import Allocates, Disturbances
from bench_prep.measure.records import ARMS, Block, Round
from bench_prep.measure.state import Span, state_reader
from bench_prep.measure.watch import Watch


class Stretches:
    """Takes `_prepare_inputs`' place; each stretch has `warmup` untimed and `iters` timed steps.

    Only decode steps of one request are counted, and of the candidate only those that the fast
    path took. While vLLM's own path is timed its block tables are not tracked. Two clocks, in
    nanoseconds: `host`, the call itself; `step`, from the start of this preparation to the next
    one's, which is the time per output token.

    The machine's state is read between rounds, in the first step after one. A round with a
    throttled device or a compilation in it does not count; the garbage collector is the service's.
    """

    def __init__(
        self,
        path: FastPath,
        warmup: int,
        iters: int,
        watch: Watch | None = None,
        device: Allocates | None = None,
    ) -> None:
        self._path = path
        self._warmup, self._iters = warmup, iters
        self._watch = Watch() if watch is None else watch
        self._device = device
        self._counting = ExitStack()
        self._rounds: list[Round] = []
        self._blocks: list[Block] = []
        #: The machine before and after each round.
        self.spans: list[Span] = []
        self._begin()

    def _begin(self) -> None:
        self._arm = ARMS[len(self._blocks)]
        self._host: list[int] = []
        self._step: list[int] = []
        self._skip, self._started = self._warmup, 0
        self._disturbances = Disturbances()
        self._counting.enter_context(self._disturbances.counted(self._device))
        if self._arm == "candidate":
            self._path.track()
        else:
            self._path.detach()

    def __call__(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        path = self._path
        prepare = path if self._arm == "candidate" else path.own_path
        dispatched = path.dispatched
        start = time.perf_counter_ns()
        result = prepare(scheduler_output, num_scheduled_tokens)
        host = time.perf_counter_ns() - start
        if self._arm == "candidate":
            counted = path.dispatched > dispatched
        else:
            counted = scheduler_output.total_num_scheduled_tokens == 1
        self._count(start, host, counted)
        return result

    def _count(self, start: int, host: int, counted: bool) -> None:
        if not counted:
            self._started = 0
        elif self._skip:
            self._skip -= 1
        else:
            if self._started:
                self._step.append(start - self._started)
            self._started = start
            if len(self._host) < self._iters:
                self._host.append(host)
            if len(self._step) == self._iters:
                self._end()

    def _end(self) -> None:
        self.close()
        self._watch.disturbances(self._arm).add(
            compilations=self._disturbances.compilations,
            allocations=self._disturbances.allocations,
        )
        self._blocks.append(Block(self._arm, {"host": self._host, "step": self._step}))
        if len(self._blocks) == len(ARMS):
            before, candidate, after = self._blocks
            self._rounds.append(Round((before, candidate, after), self._watch.left_out()))
            if self._watch.span is not None:
                self.spans.append(self._watch.span)
            self._blocks = []
        self._begin()

    def close(self) -> None:
        """Count disturbances no longer."""
        self._counting.close()

    def finished(self) -> list[Round]:
        """The whole rounds so far."""
        return self._rounds


class TimedWorker:
    """Methods for `LLM.collective_rpc`; vLLM adds them to its worker class."""

    model_runner: Any

    def timed_environment(self) -> dict[str, Any]:
        """The environment columns, and the runner's shape as settings."""
        import vllm

        from bench_prep.decode.bring_up import environment

        runner = self.model_runner
        tables = runner.input_batch.block_table.block_tables
        return {
            "environment": environment(vllm.__version__, runner),
            "settings": {
                "max_model_len": runner.max_model_len,
                "max_num_reqs": runner.max_num_reqs,
                "max_num_tokens": runner.max_num_tokens,
                "mrope": bool(runner.uses_mrope),
                "prompt_embeds": bool(runner.enable_prompt_embeds),
                "block_sizes": [int(table.block_size) for table in tables],
            },
        }

    def begin_check(self) -> bool:
        """From now on every dispatched step is compared; False: there is no fast path."""
        path = self.model_runner._prepare_inputs
        if not isinstance(path, FastPath):
            return False
        self._path = path
        self.model_runner._prepare_inputs = SelfCheck(path, self.model_runner, 1)
        return True

    def end_check(self) -> dict[str, Any]:
        """How many steps were compared, and the difference that closed the fast path, or None."""
        self.model_runner._prepare_inputs = self._path
        return {"checked": self._path.counters.checked, "closed": self._path.closed}

    def begin_stretches(self, warmup: int, iters: int) -> None:
        """From now on the two paths alternate."""
        device = self.model_runner.device
        index = None if device.type == "cpu" else device.index or 0
        self.model_runner._prepare_inputs = Stretches(
            self._path,
            warmup,
            iters,
            Watch(state_reader(device)),
            None if index is None else CudaDevice(index),
        )

    def end_stretches(self) -> dict[str, Any]:
        """The finished rounds and the machine around them; the fast path takes all steps again."""
        stretches: Stretches = self.model_runner._prepare_inputs
        stretches.close()
        self.model_runner._prepare_inputs = self._path
        self._path.track()
        return {
            "rounds": [one.to_json() for one in stretches.finished()],
            "spans": [span.to_json() for span in stretches.spans],
        }

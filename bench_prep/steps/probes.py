"""The recorders' hooks in the worker's process: put in and taken out while the engine runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench_prep.steps.parts import EXECUTE, GET_OUTPUT, NUMBERS, OUTPUT, RUNNER, RUNNER_METHODS
from bench_prep.steps.recorder import Recorder


class Scopes(dict[str, AbstractContextManager[Any]]):
    """vLLM's scopes by name: what `vllm.v1.utils.record_function_or_nullcontext` looks up."""

    _OTHERS = nullcontext()

    def __init__(self, recorder: Recorder, names: dict[str, str]) -> None:
        super().__init__({scope: recorder.scope(name) for scope, name in names.items()})

    def __missing__(self, name: str) -> AbstractContextManager[Any]:
        return self._OTHERS

    def use(self) -> None:
        """From now on vLLM's scopes in this process are these."""
        from vllm.v1 import utils

        utils._PROFILER_FUNC = self.__getitem__


class Probes:
    """vLLM's scopes, methods of this runner, and the wait for the sampled token."""

    def __init__(self, runner: Any, folder: Path, scopes: dict[str, str]) -> None:
        self._runner = runner
        self._recorder = Recorder(folder, RUNNER)
        self._output = Recorder(folder, OUTPUT)
        self._scopes = Scopes(self._recorder, scopes)
        self._own: dict[str, Any] = {}

    def execute(self, own: Any) -> Any:
        """The runner's `execute_model`, which the stretches call, recorded."""
        self._recorder.here()
        return self._recorder.recorded(EXECUTE, own)

    def attach(self) -> None:
        """Record from now on; what is the runner's own at this moment is what is recorded."""
        runner = self._runner
        for method, name in RUNNER_METHODS.items():
            if name != EXECUTE:
                own = getattr(runner, method)
                self._own[method] = vars(runner).get(method)
                setattr(runner, method, self._recorder.recorded(name, own))
        self._scopes.use()
        output = _async_output()
        self._get_output = output.get_output
        output.get_output = self._recorded_output(output.get_output)

    def detach(self) -> None:
        """Everything as it was before `attach`."""
        if not self._own:
            return
        for method, before in self._own.items():
            if before is None:
                delattr(self._runner, method)
            else:
                setattr(self._runner, method, before)
        self._own = {}
        from vllm.v1 import utils

        utils._PROFILER_FUNC = None  # vLLM looks up its own again
        _async_output().get_output = self._get_output

    def _recorded_output(self, own: Any) -> Any:
        recorder, number = self._output, NUMBERS[GET_OUTPUT]

        def get_output(output: Any) -> Any:
            begin = perf_counter_ns()
            try:
                return own(output)
            finally:
                recorder.add(number, begin, perf_counter_ns())
                recorder.here()  # whichever thread vLLM waits in

        return get_output


def _async_output() -> Any:
    from vllm.v1.worker import gpu_model_runner

    return gpu_model_runner.AsyncGPUModelRunnerOutput

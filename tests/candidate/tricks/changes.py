"""Changes what the baseline, the proof or the clock runs, too."""

from __future__ import annotations

import builtins
import gc
import importlib
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from tests.candidate.tricks.borrows import baseline_of

Prepare = Callable[[Any, Any], Any]
RUNNER = "vllm.v1.worker.gpu_model_runner"


def _own_path(runner: Any) -> Prepare:
    prepare: Prepare = runner._prepare_inputs
    return prepare


def code(runner: Any) -> Prepare:
    """vLLM's preparation waits; the candidate has a copy of it as it was."""
    method = type(runner)._prepare_inputs
    copy = types.FunctionType(method.__code__, method.__globals__, closure=method.__closure__)
    method.__globals__["_slow_copy"] = copy

    def slow(self: Any, output: Any, scheduled: Any) -> Any:
        __import__("time").sleep(0.0001)
        return _slow_copy(self, output, scheduled)  # type: ignore[name-defined]  # noqa: F821

    method.__code__ = slow.__code__
    return types.MethodType(copy, runner)


def defaults(runner: Any) -> Prepare:
    """Another default for an argument of a function that the preparation calls."""
    method = type(runner)._get_cumsum_and_arange
    method.__defaults__ = (None,) * (method.__code__.co_argcount - 1)
    return _own_path(runner)


def module_global(runner: Any) -> Prepare:
    """vLLM's NumPy is another one."""
    module = importlib.import_module(RUNNER)
    module.np = types.SimpleNamespace(**vars(module.np))
    return _own_path(runner)


def constant(runner: Any) -> Prepare:
    importlib.import_module("vllm.v1.attention.backends.utils").PAD_SLOT_ID = -2
    return _own_path(runner)


def new_method(runner: Any) -> Prepare:
    """The runner's class gets a method that its base has."""
    cls = type(runner)
    name = next(name for name in vars(cls.__mro__[1]) if name not in vars(cls))
    setattr(cls, name, lambda *_: None)
    return _own_path(runner)


def baseline_s_method(runner: Any) -> Prepare:
    """A part of the preparation, on the baseline's runner alone."""
    other = baseline_of(runner)
    own = other._get_cumsum_and_arange
    other._get_cumsum_and_arange = lambda *args, **kwargs: own(*args, **kwargs)
    return _own_path(runner)


def both_s_method(runner: Any) -> Prepare:
    """The same on both runners; the candidate is what it was before."""
    own_path = _own_path(runner)
    for one in (runner, baseline_of(runner)):
        one._compute_prev_positions = lambda *args: None
    return own_path


def configuration(runner: Any) -> Prepare:
    runner.vllm_config.scheduler_config.max_num_seqs += 1
    return _own_path(runner)


def torch_function(runner: Any) -> Prepare:
    import torch

    own = torch.Tensor.copy_
    torch.Tensor.copy_ = lambda *args, **kwargs: own(*args, **kwargs)  # type: ignore[method-assign]
    return _own_path(runner)


def numpy_function(runner: Any) -> Prepare:
    import numpy as np

    own = np.cumsum
    np.cumsum = lambda *args, **kwargs: own(*args, **kwargs)
    return _own_path(runner)


def synchronization(runner: Any) -> Prepare:
    import torch

    torch.cuda.synchronize = lambda *_: None
    return _own_path(runner)


def collector(runner: Any) -> Prepare:
    """Works whenever the garbage collector has run."""
    gc.callbacks.append(lambda *_: None)
    return _own_path(runner)


def disabled_collector(runner: Any) -> Prepare:
    gc.disable()
    return _own_path(runner)


def frozen_collector(runner: Any) -> Prepare:
    gc.freeze()
    return _own_path(runner)


def builtin(runner: Any) -> Prepare:
    own = builtins.len
    builtins.len = lambda value: own(value)  # type: ignore[assignment]
    return _own_path(runner)


def shadowed_builtin(runner: Any) -> Prepare:
    importlib.import_module(RUNNER).len = lambda value: value.__len__()
    return _own_path(runner)


def tracing(runner: Any) -> Prepare:
    sys.settrace(lambda *_: None)
    return _own_path(runner)


def threads_of_torch(runner: Any) -> Prepare:
    import torch

    torch.set_num_threads(torch.get_num_threads() + 1)
    return _own_path(runner)


def dispatch_mode(runner: Any) -> Prepare:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    Mode().__enter__()
    return _own_path(runner)


def clock(runner: Any) -> Prepare:
    time.perf_counter_ns = lambda: 0
    return _own_path(runner)


def clock_of_the_harness(runner: Any) -> Prepare:
    """The clock of the timing alone."""
    clocks = importlib.import_module("bench_prep.measure.clocks")
    clocks.time = types.SimpleNamespace(perf_counter_ns=lambda: 0)
    return _own_path(runner)


def comparison(runner: Any) -> Prepare:
    importlib.import_module("bench_prep.decode.equality").require_equal = lambda *_: None
    return _own_path(runner)


def while_timed(runner: Any) -> Prepare:
    """The clock, once the proof is over."""
    own_path, calls = runner._prepare_inputs, 0

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 100:
            clock(runner)
        return own_path(output, scheduled)

    return prepare


def baseline_s_step(runner: Any) -> Prepare:
    """The baseline's arm, which it finds on the stack, does its preparation twice."""
    own_path, calls = runner._prepare_inputs, 0

    def prepare(output: Any, scheduled: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 100:
            frame = sys._getframe()
            while "arms" not in frame.f_locals:
                assert frame.f_back is not None
                frame = frame.f_back
            baseline = frame.f_locals["arms"].baseline
            once = baseline.prepare
            baseline.prepare = lambda *args: (once(*args), once(*args))[1]
        return own_path(output, scheduled)

    return prepare

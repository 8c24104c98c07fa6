"""The environment that vLLM must find when the tests import it, and what is skipped where."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys

import pytest
from hypothesis import settings

from bench_prep.child.device import child_environment, has_device

# How long an example takes is the machine's matter.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
os.environ.update(child_environment("auto"))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a shell's background job
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STATUS = pytest.StashKey[int]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_vllm = importlib.util.find_spec("vllm") is None
    for item in items:
        if no_vllm and ("vllm" in item.keywords or "gpu" in item.keywords):
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))
        if "gpu" in item.keywords and not has_device():
            item.add_marker(pytest.mark.skip(reason="no CUDA or ROCm device"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_STATUS] = int(exitstatus)


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # by a timed block; libraries complain about objects that outlive the interpreter
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # NCCL's process groups, destroyed or not, keep a process for minutes.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash.get(_STATUS, 1))

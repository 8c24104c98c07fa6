"""The vLLM plugin: every worker of vLLM gets the fast path when its KV cache is ready.

vLLM calls `register` in each of its processes (entry-point group `vllm.general_plugins`). Nothing
here may stop vLLM: whatever fails leaves vLLM's own path in place and one warning says why.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import wrapt

from bench_prep.fastpath.events import closed, failed, off, reserved

#: `0` turns the fast path off; nothing is needed to turn it on.
SWITCH = "BENCH_PREP_FASTPATH"
#: Compare every Nth dispatched step with vLLM's own path, in the live service.
SELFCHECK = "BENCH_PREP_SELFCHECK"
#: Seconds between two summaries in the log, while steps are taken.
SUMMARY_SECONDS = "BENCH_PREP_SUMMARY_SECONDS"

_WORKERS = "vllm.v1.worker.worker_base"


def register() -> None:
    """Attach the fast path to every worker that this process will make.

    Safe to call several times. What it costs is an import hook: the worker's module is wrapped
    when vLLM imports it, and never imported from here.
    """
    try:
        wrapt.register_post_import_hook(_wrap_workers, _WORKERS)
    except Exception as error:  # a damaged installation of wrapt
        failed(error)


def _wrap_workers(module: Any) -> None:
    try:
        wrapper = module.WorkerWrapperBase
        own = wrapper.initialize_from_config
        if hasattr(own, "_bench_prep"):
            return

        @functools.wraps(own)
        def initialize_from_config(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = own(self, *args, **kwargs)
            attach_to_worker(self.worker)
            return result

        initialize_from_config._bench_prep = True  # type: ignore[attr-defined]
        wrapper.initialize_from_config = initialize_from_config
    except Exception as error:
        failed(error)


def attach_to_worker(worker: Any) -> None:
    """Give the worker's runner the fast path, where its service gate is open, and say so."""
    try:
        _remove(worker.model_runner)
        if os.environ.get(SWITCH, "").strip().lower() in {"0", "false", "off", "no"}:
            off(SWITCH)
            return
        _attach(worker.model_runner)
    except Exception as error:
        failed(error)


def _attach(runner: Any) -> None:
    from bench_prep.fastpath.fingerprint import look_again
    from bench_prep.fastpath.gates import closed_service_gate
    from bench_prep.fastpath.preparer import FastPath
    from bench_prep.fastpath.selfcheck import SelfCheck
    from bench_prep.fastpath.summary import Summary

    start = time.perf_counter()
    look_again()
    if "_prepare_inputs" in vars(runner):
        reason: str | None = (
            "replaced preparation: something else has taken its place on this runner"
        )
    else:
        reason = closed_service_gate(runner)
    if reason is not None:
        closed(reason)
        return
    selfcheck, seconds = _number(SELFCHECK, 0), _number(SUMMARY_SECONDS, 60)
    path = FastPath(runner)
    runner._bench_prep = path
    runner._prepare_inputs = SelfCheck(path, runner, selfcheck) if selfcheck else path
    try:
        Summary(path, seconds)
    except Exception:  # no thread can be started
        _remove(runner)
        raise
    reserved(runner, selfcheck, time.perf_counter() - start)


def _remove(runner: Any) -> None:
    """A KV cache that is initialized again needs a fast path of its own."""
    from bench_prep.fastpath.selfcheck import SelfCheck

    own = vars(runner)
    path = own.pop("_bench_prep", None)
    if path is not None:
        path.detach()
        taken = own.get("_prepare_inputs")
        if taken is path or (type(taken) is SelfCheck and taken.path is path):
            del own["_prepare_inputs"]
        elif path.closed is None:  # what has taken its place may go on calling it
            path.close("replaced preparation")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{name}={text} is no whole number")
    return int(text)

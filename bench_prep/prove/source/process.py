"""The process of `prove source`: seeded traces of twins of the installed vLLM.

Started by `provenance.launch`. Its events, in order: `imported`, `state`, some `progress`,
`proven`, `done`; or `error`.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from bench_prep.child.channel import emit
from bench_prep.child.job import do_job
from bench_prep.decode.bring_up import bring_up, environment
from bench_prep.decode.imported import check_imported, import_vllm
from bench_prep.errors import BenchPrepError, Missing
from bench_prep.prove.source.events import Begun, Progress, Proven


def _work(job: dict[str, Any]) -> None:
    version = import_vllm(job["package_dir"])

    from bench_prep.fastpath.fingerprint import fingerprint
    from bench_prep.prove.source.traces import Totals, prove
    from bench_prep.prove.source.variants import variants

    first = variants()[0].settings().model_copy(update={"device": job["device"]})
    runner = bring_up(first, version, job, 1)[0]
    entry = _served(runner, version, add=job["add"])
    digest = fingerprint(type(runner), runner.device.type)
    names = [variant.name for variant in variants()]
    emit(Begun(environment(version, runner), digest, names, admitted=entry is not None))

    begun = None

    def progress(totals: Totals, name: str) -> None:
        nonlocal begun
        if name != begun:
            begun = name
            print(f"{totals.steps} steps; {name} begins", flush=True)  # for the log
        emit(Progress(name, totals.steps, totals.dispatched))

    started = time.monotonic()
    try:
        totals = prove(variants(), job["steps"], job["seed"], progress)
    except BenchPrepError as error:
        print(error.message, flush=True)  # in the log too, whoever reads the events
        raise
    emit(Proven(totals.to_json(), totals.missing(), time.monotonic() - started, entry))


def _served(runner: Any, version: str, *, add: bool) -> dict[str, Any] | None:
    """None for a known source; an unknown one is admitted, in this process, if it is to be added.

    Raises:
        Missing: the fast path does not serve the runner.
    """
    from bench_prep.fastpath.fingerprint import admit
    from bench_prep.fastpath.gates import UNKNOWN_SOURCE, closed_service_gate

    reason = closed_service_gate(runner)
    entry = None
    if add and reason is not None and reason.startswith(UNKNOWN_SOURCE):
        base_version = version.partition("+")[0]
        _, source = admit(type(runner), runner.device.type, base_version, _returns())
        entry = asdict(source)
        reason = closed_service_gate(runner)
    if reason is not None:
        unknown = reason.startswith(UNKNOWN_SOURCE)
        raise Missing(
            f"the fast path does not serve this vLLM ({reason})",
            "--add proves an unknown source and adds it" if unknown else "use another vLLM",
        )
    return entry


def _returns() -> int:
    """How many values vLLM's own `_prepare_inputs` returns."""
    from bench_prep.prove.source.variants import variants

    twins, _ = variants()[0].twins(0, attach=lambda runner: runner._prepare_inputs)
    twins.arrive(3)
    twins.step()
    return len(twins.results[0])


if __name__ == "__main__":
    do_job(_work, check_imported)

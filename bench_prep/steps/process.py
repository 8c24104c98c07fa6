"""The process of a recorded engine: vLLM's `LLM` with its own processes for scheduler and worker.

Started by `provenance.launch`. Its events: `loaded`, `equal` if there is a fast path, `recorded`,
`profiled` for each arm if there is a device, `done`; or `error`.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_prep.child.channel import emit
from bench_prep.child.job import do_job
from bench_prep.engine.events import Compared
from bench_prep.errors import Inconclusive
from bench_prep.steps.events import Profiled, Recordable, Recorded
from bench_prep.steps.parts import CLIENT, CLIENT_SCOPES, FAST, FOLDER, OWN, SCHEDULER, WORKER
from bench_prep.steps.probes import Scopes
from bench_prep.steps.recorder import Recorder
from bench_prep.steps.stretches import AFTER_PROMPT, Stretch, plan

#: Steps of each arm that are profiled.
PROFILED = 64
#: How often more steps are taken for stretches that are not filled yet.
_ATTEMPTS = 3


def _work(job: dict[str, Any]) -> None:
    from vllm import LLM

    from bench_prep.engine.vllm.decoding import Decoding

    llm = LLM(
        worker_extension_cls=WORKER,
        scheduler_cls=SCHEDULER,
        skip_tokenizer_init=True,
        **job["engine"],
    )

    def ask(method: str, *arguments: Any) -> Any:
        return llm.collective_rpc(method, args=arguments)[0]

    found = ask("timed_environment")
    asynchronous = ask("schedules_asynchronously")
    emit(Recordable(**found, record_ns=ask("record_cost_ns"), asynchronous=asynchronous))
    request = Decoding(llm, job["prompt_tokens"], found["settings"]["max_model_len"])
    fast = ask("begin_check")
    compared = request.warm_up(checked=fast)
    if fast:
        emit(Compared(compared))
    client = Recorder(Path(os.environ[FOLDER]), CLIENT)
    client.here()
    Scopes(client, CLIENT_SCOPES).use()

    def record(stretches: list[Stretch], iters: int) -> list[tuple[int, int]]:
        ask("begin_recording", [asdict(one) for one in stretches], job["warmup"], iters, fast)
        # A step more: each ends with the next one's start.
        needed = len(stretches) * (job["warmup"] + iters) + AFTER_PROMPT + 1
        for _ in range(_ATTEMPTS):
            request.decode(needed)
            if ask("recording_filled"):
                return list(ask("end_recording"))
        raise Inconclusive(
            "the stretches were not filled: the fast path left steps to vLLM's own path",
            "see the summary in the log",
        )

    stretches = [one for number in range(job["rounds"]) for one in plan(number, fast=fast)]
    steps = record(stretches, job["iters"])
    emit(Recorded(stretches, steps))
    if found["environment"]["platform"] != "cpu":
        for arm in (OWN, FAST)[: 1 + fast]:
            profile = Path(os.environ[FOLDER]) / f"{arm}.profile.json"
            ask("begin_profile")
            steps = record([Stretch(arm, True, 0)], PROFILED)
            offset = ask("end_profile", str(profile))
            emit(Profiled(arm, steps, offset))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":  # vLLM's own processes import this module again
    do_job(_work)

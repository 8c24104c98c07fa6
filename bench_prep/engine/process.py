"""The process of a timed engine: vLLM's `LLM` with its own processes for scheduler and worker.

Started by `provenance.launch`. Its events: `loaded`, `equal`, `rounds` as often as the method asks
for more, `stopped`, `done`; or `error`.
"""

from __future__ import annotations

import time
from typing import Any

from bench_prep.child.channel import emit
from bench_prep.child.job import do_job
from bench_prep.engine.events import Compared, Loaded, Rounds, Stopped
from bench_prep.engine.vllm.names import LOAD_FORMAT, TIMED_WORKER
from bench_prep.errors import Inconclusive, Missing
from bench_prep.measure.records import ARMS, Round
from bench_prep.measure.state import Span
from bench_prep.measure.stopping import Ending
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT
from bench_prep.settings import Method

#: Rounds after the first ones, between which it is asked whether they are enough.
ROUNDS_AT_A_TIME = 5


def _work(job: dict[str, Any]) -> None:
    from vllm import LLM

    from bench_prep.engine.vllm.decoding import Decoding

    llm = LLM(
        load_format=LOAD_FORMAT,
        worker_extension_cls=TIMED_WORKER,
        skip_tokenizer_init=True,
        **job["engine"],
    )

    def ask(method: str, *arguments: Any) -> Any:
        return llm.collective_rpc(method, args=arguments)[0]

    found = ask("timed_environment")
    emit(Loaded(**found))
    request = Decoding(llm, job["prompt_tokens"], found["settings"]["max_model_len"])
    if not ask("begin_check"):
        raise Missing(
            "the fast path is not attached to this engine (its log says why)",
            "list the architecture once it is proven: bench-prep prove model --add",
        )
    emit(Compared(request.warm_up(checked=True)))
    method = Method(**job["method"])
    ending, began = Ending(method), time.monotonic()
    wanted, stopped_by = method.rounds or ROUNDS_FOR_VERDICT, None
    while stopped_by is None:
        started = time.monotonic()
        ask("begin_stretches", method.warmup, method.iters)
        # One step more per stretch: a step's time ends with the next one's start.
        request.decode((wanted + 1) * len(ARMS) * (method.warmup + method.iters + 1))
        found = ask("end_stretches")
        rounds, spans = (found[name][:wanted] for name in ("rounds", "spans"))
        if not rounds:
            raise Inconclusive(
                "no round was filled: the fast path left steps to vLLM's own path",
                "see the summary in the log",
            )
        counted = [Round.from_json(one) for one in rounds]
        emit(Rounds(counted, [Span.from_json(one) for one in spans]))
        now = time.monotonic()
        stopped_by = ending.after(counted, now - began, now - started)
        wanted = wanted - len(rounds) or ROUNDS_AT_A_TIME  # those that were not filled, or more
    emit(Stopped(stopped_by))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":  # vLLM's own processes import this module again
    do_job(_work)

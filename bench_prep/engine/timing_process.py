"""The process of a timed engine: vLLM's `LLM` with its own processes for scheduler and worker.

Started by `provenance.launch`. Its events: `loaded`, `equal`, `rounds`, `done`; or `error`.
"""

from __future__ import annotations

from typing import Any

from bench_prep.bringup import do_job
from bench_prep.engine.names import LOAD_FORMAT, TIMED_WORKER
from bench_prep.errors import Inconclusive, Missing, OutputsDiffer
from bench_prep.measure.records import ARMS
from bench_prep.provenance.child import emit

#: Steps that are compared before the timing, and with which every kernel is warmed up.
CHECKED_STEPS = 200


def _work(job: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        load_format=LOAD_FORMAT,
        worker_extension_cls=TIMED_WORKER,
        skip_tokenizer_init=True,
        **job["engine"],
    )

    def ask(method: str, *arguments: Any) -> Any:
        return llm.collective_rpc(method, args=arguments)[0]

    def decode(tokens: int) -> None:
        """One request that is decoded up to the model's length at most, as often as needed."""
        room = shape["max_model_len"] - job["prompt_tokens"] - 1
        prompt = [1 + i % 500 for i in range(job["prompt_tokens"])]
        while tokens > 0:
            sampling = SamplingParams(
                temperature=0.0, max_tokens=min(tokens, room), ignore_eos=True, detokenize=False
            )
            llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
            tokens -= room

    found = ask("timed_environment")
    shape = found["settings"]
    emit({"event": "loaded", **found})
    if not ask("begin_check"):
        raise Missing(
            "the fast path is not attached to this engine (its log says why)",
            "list the architecture once it is proven: bench-prep prove model --add",
        )
    decode(CHECKED_STEPS)
    checked = ask("end_check")
    if checked["closed"] is not None:
        raise OutputsDiffer(f"outputs differ: {checked['closed']}", "no timing is reported")
    emit({"event": "equal", "steps": checked["checked"]})
    ask("begin_stretches", job["warmup"], job["iters"])
    # One step more per stretch: a step's time ends with the next one's start.
    decode((job["rounds"] + 1) * len(ARMS) * (job["warmup"] + job["iters"] + 1))
    found = ask("end_stretches")
    rounds, spans = (found[name][: job["rounds"]] for name in ("rounds", "spans"))
    if len(rounds) < job["rounds"]:
        raise Inconclusive(
            f"only {len(rounds)} of {job['rounds']} rounds were filled: the fast path left steps "
            "to vLLM's own path",
            "see the summary in the log",
        )
    emit({"event": "rounds", "rounds": rounds, "spans": spans})
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":  # vLLM's own processes import this module again
    do_job(_work)

"""The process of one engine: vLLM's `LLM` with its own processes for scheduler and worker.

Started by `provenance.launch`. Its events: one `facts`, one `outputs` per phase and pass, one
`fault` per planted wrong slot, `done`; or `error`.
"""

from __future__ import annotations

from typing import Any

from bench_prep.child.channel import emit
from bench_prep.child.job import do_job
from bench_prep.engine.vllm.names import GREEDY, LOAD_FORMAT, WORKER_EXTENSION
from bench_prep.prove.model.events import Facts, Fault, Outputs
from bench_prep.prove.model.requests import Phase, phases


def _work(job: dict[str, Any]) -> None:
    import vllm

    engine = _Engine(job["engine"])
    facts = engine.ask("engine_facts")
    emit(Facts(facts, vllm.__version__))
    todo = phases(
        block_size=max((g["block_size"] for g in facts["groups"] if g["slots"]), default=1),
        vocab_size=facts["vocab_size"],
        max_model_len=job["engine"]["max_model_len"],
        max_num_batched_tokens=job["engine"]["max_num_batched_tokens"],
    )
    for number in range(job["passes"]):
        engine.llm.reset_prefix_cache()
        for phase in todo:
            emit(Outputs(number, phase.name, *engine.run(phase)))
    if job["plant"] and engine.ask("fast_path_counts") is not None:
        greedy = next(phase for phase in todo if phase.name == GREEDY)
        for index, group in enumerate(facts["groups"]):
            if group["slots"]:
                engine.ask("plant_wrong_slot", index)
                requests, _ = engine.run(greedy)
                position = engine.ask("remove_wrong_slot")
                emit(Fault(index, position, requests))
    engine.llm.llm_engine.engine_core.shutdown()


class _Engine:
    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(
            load_format=LOAD_FORMAT,
            worker_extension_cls=WORKER_EXTENSION,
            **arguments,
        )

    def ask(self, method: str, *arguments: Any) -> Any:
        """The one worker's answer."""
        return self.llm.collective_rpc(method, args=arguments)[0]

    def run(self, phase: Phase) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Outputs of each request, and the fast path's counters since the engine's start.

        All requests are there before the first step: which steps they share must not depend on
        how fast they arrive.
        """
        self.llm.sleep(level=0, mode="keep")
        self.llm.enqueue(
            [{"prompt_token_ids": list(one.prompt)} for one in phase.requests],
            [_sampling(**one.sampling) for one in phase.requests],
            use_tqdm=False,
        )
        self.llm.wake_up(tags=["scheduling"])
        outputs = self.llm.wait_for_completion(use_tqdm=False)
        return [_request(output) for output in outputs], self.ask("fast_path_counts")


def _sampling(structured_outputs: dict[str, Any] | None = None, **given: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if structured_outputs is not None:
        given["structured_outputs"] = StructuredOutputsParams(**structured_outputs)
    return SamplingParams(detokenize=False, **given)


def _request(output: Any) -> dict[str, Any]:
    (completion,) = output.outputs
    return {
        "tokens": list(completion.token_ids),
        "logprobs": [_logprobs(step) for step in completion.logprobs],
        "prompt_logprobs": [_logprobs(step) for step in output.prompt_logprobs or ()],
        "prompt_tokens": len(output.prompt_token_ids),
        "cached": output.num_cached_tokens,
        "finish": [completion.finish_reason, completion.stop_reason],
    }


def _logprobs(step: dict[int, Any] | None) -> list[list[Any]]:
    """Token, log-probability to the bit, and rank, of each token that is named for a step."""
    return [[token, one.logprob.hex(), one.rank] for token, one in (step or {}).items()]


if __name__ == "__main__":  # vLLM's own processes import this module again
    do_job(_work)

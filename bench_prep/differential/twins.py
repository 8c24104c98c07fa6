"""Traces of requests that come, run together, pause and leave, fed to twins step by step.

Scheduler outputs are vLLM's own objects; what is decided here is only which request gets which
tokens and blocks, as vLLM's scheduler would.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import torch

from bench_prep.snapshot import first_difference

VOCABULARY = 1000


@dataclasses.dataclass
class Request:
    """One request as the scheduler sees it."""

    name: str
    prompt: list[int]
    blocks: list[list[int]]
    computed: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    in_batch: bool = False
    fresh: bool = True

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.tokens)


class Twins:
    """Two runners that are fed the same scheduler outputs; the second one has a candidate."""

    def __init__(self, baseline: Any, runner: Any, candidate: Any, block_sizes: tuple[int, ...]):
        self.runners = (baseline, runner)
        self.prepares = (baseline._prepare_inputs, candidate)
        self.block_sizes = block_sizes
        self.rng = np.random.default_rng(0)
        self.live: dict[str, Request] = {}
        self.finished: set[str] = set()
        self.free = list(range(1, 4000))
        self.rng.shuffle(self.free)
        self.count = 0

    def arrive(self, length: int) -> Request:
        """A new request; it is scheduled from the next step on."""
        self.count += 1
        prompt = self.rng.integers(0, VOCABULARY, length).tolist()
        request = Request(f"r{self.count}", prompt, [[] for _ in self.block_sizes])
        self.live[request.name] = request
        return request

    def finish(self, request: Request) -> None:
        """The request leaves; the runners hear of it in the next step."""
        del self.live[request.name]
        if not request.fresh:
            self.finished.add(request.name)
        self._release(request)

    def preempt(self, request: Request) -> None:
        """Its blocks are taken; when scheduled again it computes everything anew."""
        self._release(request)
        request.computed = 0

    def _release(self, request: Request) -> None:
        for group in request.blocks:
            self.free.extend(group)
        request.blocks = [[] for _ in self.block_sizes]

    def step(self, chunk: int = 1000, only: list[Request] | None = None) -> None:
        """Schedule every live request, or `only` these; prompts advance by up to `chunk` tokens.

        Raises AssertionError when the twins' states differ afterwards.
        """
        scheduled = [r for r in self.live.values() if only is None or r in only]
        if not scheduled:
            return
        output = self._output({r.name: min(r.known - r.computed, chunk) for r in scheduled})
        sampled = self.rng.integers(0, VOCABULARY, len(scheduled)).astype(np.int32)
        results = []
        for runner, prepare in zip(self.runners, self.prepares, strict=True):
            # A copy each: vLLM keeps the lists of a scheduler output and extends them.
            results.append(_take(runner, prepare, copy.deepcopy(output), sampled))
        order = list(self.runners[0].input_batch.req_ids)
        for request in self.live.values():
            request.in_batch = request.name in output.num_scheduled_tokens
        for index, name in enumerate(order):
            request = self.live[name]
            request.computed += output.num_scheduled_tokens[name]
            if request.computed == request.known:
                request.tokens.append(int(sampled[index]))
        difference = first_difference((self.runners[0], results[0]), (self.runners[1], results[1]))
        assert difference is None, f"after {output.num_scheduled_tokens}: {difference}"

    def _output(self, tokens: dict[str, int]) -> Any:
        from vllm import SamplingParams
        from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

        new, cached = [], CachedRequestData.make_empty()
        for name, count in tokens.items():
            request = self.live[name]
            added = self._allocate(request, request.computed + count)
            if request.fresh:
                request.fresh = False
                new.append(
                    NewRequestData(
                        req_id=name,
                        prompt_token_ids=list(request.prompt),
                        mm_features=[],
                        sampling_params=SamplingParams(temperature=0.0),
                        pooling_params=None,
                        block_ids=tuple(list(group) for group in request.blocks),
                        num_computed_tokens=0,
                        lora_request=None,
                    )
                )
                continue
            resumed = not request.in_batch and request.computed == 0
            cached.req_ids.append(name)
            if resumed:
                cached.resumed_req_ids.add(name)
            if not request.in_batch:
                cached.all_token_ids[name] = request.prompt + request.tokens
            blocks = tuple(list(group) for group in (request.blocks if resumed else added))
            cached.new_block_ids.append(blocks if resumed or any(blocks) else None)
            cached.num_computed_tokens.append(request.computed)
            cached.num_output_tokens.append(len(request.tokens))
        finished, self.finished = self.finished, set()
        return dataclasses.replace(
            SchedulerOutput.make_empty(),
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            finished_req_ids=finished,
        )

    def _allocate(self, request: Request, tokens: int) -> list[list[int]]:
        added = []
        for group, size in zip(request.blocks, self.block_sizes, strict=True):
            new = [self.free.pop() for _ in range(-(-tokens // size) - len(group))]
            group.extend(new)
            added.append(new)
        return added


@torch.inference_mode()
def _take(runner: Any, prepare: Any, output: Any, sampled: np.ndarray[Any, Any]) -> Any:
    """One step of one runner: states, preparation, booking of the sampled tokens."""
    from vllm.v1.outputs import SamplerOutput

    if runner.prepare_inputs_event is not None:
        runner.prepare_inputs_event.synchronize()
    runner._update_states(output)
    counts = [output.num_scheduled_tokens[name] for name in runner.input_batch.req_ids]
    result = prepare(output, np.array(counts, dtype=np.int32))
    if runner.prepare_inputs_event is not None:
        runner.prepare_inputs_event.record()
    token = torch.from_numpy(sampled[:, None].copy()).to(runner.device)
    runner.input_batch.prev_sampled_token_ids = None
    hidden = torch.empty(sum(counts), 1, device=runner.device)
    runner._bookkeeping_sync(output, SamplerOutput(token, None), None, hidden, sum(counts))
    return result

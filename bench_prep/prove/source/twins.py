"""Twins: two real vLLM runners, fed the same scheduler outputs, whose whole states stay equal.

A step is vLLM's own `execute_model` and `sample_tokens` with a stand-in for the model. Scheduler
outputs are vLLM's own objects; what is decided here is only which request gets which tokens and
blocks, as vLLM's scheduler would.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench_prep.decode.model import VOCAB_SIZE
from bench_prep.errors import OutputsDiffer
from bench_prep.prove.source.blocks import BlockPool
from bench_prep.prove.source.compare import difference
from bench_prep.prove.source.model import StandIn
from bench_prep.prove.source.requests import SEED, STRUCTURED, Request
from bench_prep.snapshot import addresses, first_difference, moved

#: What happens inside steps, beside the operations: names of counters in `Twins.seen`.
NEW_BLOCK, FULL_ROW, MODEL_LENGTH = "new block", "full row", "model length"
CONDENSED, REORDERED, ALONE_AGAIN = "condensed", "reordered", "alone again"
RESUMED, PREFIX_HIT, CHUNKED_PREFILL = "resumed", "prefix-cache hit", "chunked prefill"
HAPPENINGS = (
    NEW_BLOCK, FULL_ROW, MODEL_LENGTH, CONDENSED, REORDERED, ALONE_AGAIN, RESUMED, PREFIX_HIT,
    CHUNKED_PREFILL,
)  # fmt: skip


class Twins:
    """Two runners that are fed the same scheduler outputs; the second one has a candidate.

    Attributes:
        live: the unfinished requests by name, in the order of their arrival.
        steps: steps taken in which something was scheduled.
        seen: how often each of `HAPPENINGS`, and each kind of request, was in a step.
    """

    def __init__(
        self,
        baseline: Any,
        runner: Any,
        candidate: Any,
        block_sizes: tuple[int, ...],
        *,
        state_groups: int = 0,
        reorders: bool = False,
        seed: int = 0,
    ):
        self.runners = (baseline, runner)
        self.results: list[Any] = [None, None]
        prepares = (baseline._prepare_inputs, candidate)
        for index, prepare in enumerate(prepares):
            self._bring_up(index, prepare, reorders)
        self.block_sizes = block_sizes
        self.max_model_len: int = runner.max_model_len
        self.rng = np.random.default_rng(seed)
        self.pool = BlockPool(block_sizes, state_groups, self.rng)
        self.live: dict[str, Request] = {}
        self.finished: set[str] = set()
        self.steps = 0
        self.seen: Counter[str] = Counter()
        self._count = 0
        self._order: list[str] = []
        # Captured graphs go on reading where a buffer was.
        self._places = [addresses(one) for one in self.runners]

    def _bring_up(self, index: int, prepare: Callable[..., Any], reorders: bool) -> None:
        runner = self.runners[index]
        runner.model = StandIn(runner.inputs_embeds_size, VOCAB_SIZE, runner.dtype, runner.device)
        # Attention without layers: metadata common to all layers is built, and nothing else.
        runner.attn_groups = [[] for _ in runner.kv_cache_config.kv_cache_groups]
        runner.reorder_batch_threshold = 1 if reorders else None
        if runner.uses_mrope:
            runner._init_mrope_positions = _image_positions

        def prepared(*arguments: Any) -> Any:
            self.results[index] = prepare(*arguments)
            return self.results[index]

        runner._prepare_inputs = prepared

    def arrive(self, length: int) -> Request:
        """A new greedy request of `length` random tokens; it is scheduled from the next step on."""
        from bench_prep.prove.source.requests import sampling_params

        prompt = self.rng.integers(0, VOCAB_SIZE, length).tolist()
        return self.add(prompt, params=sampling_params("greedy", lambda low, high: low))

    def add(self, prompt: list[int], name: str | None = None, **fields: Any) -> Request:
        """A new request with these `Request` fields."""
        self._count += 1
        request = Request(name or f"r{self._count}", prompt, self.pool.none(), **fields)
        self.live[request.name] = request
        return request

    def finish(self, request: Request) -> None:
        """The request leaves, wherever it is; the runners hear of it in the next step."""
        del self.live[request.name]
        self.finished.add(request.name)
        self.pool.release(request.blocks)

    def preempt(self, request: Request) -> None:
        """Its blocks are taken; when scheduled again it computes everything anew."""
        self.pool.release(request.blocks)
        request.blocks = self.pool.none()
        request.computed = 0
        request.preempted = not request.fresh

    def step(self, chunk: int = 1000, only: list[Request] | None = None) -> None:
        """Schedule every live request, or `only` these; prompts advance by up to `chunk` tokens.

        Raises:
            OutputsDiffer: the twins' states differ afterwards.
        """
        self._execute(self._schedule(chunk, [*self.live.values()] if only is None else only))

    def idle(self) -> None:
        """A step in which nothing is scheduled: the runners only hear who has finished.

        Raises:
            OutputsDiffer: as `step`.
        """
        self._execute({})

    @torch.inference_mode()
    def dummy_run(self, tokens: int, attention: bool) -> None:
        """vLLM's own dummy batch, as between the steps of a data-parallel engine.

        Raises:
            OutputsDiffer: as `step`.
        """
        for runner in self.runners:
            runner._dummy_run(tokens, force_attention=attention)
        self._compare("after a dummy run")

    def _schedule(self, chunk: int, wanted: list[Request]) -> dict[str, int]:
        """Tokens per request within the runner's limits, resumed and new requests last."""
        runner = self.runners[0]
        budget: int = runner.max_num_tokens
        counts: dict[str, int] = {}
        for request in sorted(wanted, key=lambda r: (r.fresh, r.preempted)):
            if request.pause:
                request.pause -= 1
                continue
            left = request.known - request.computed
            count = min(left, chunk, budget)
            if request.asked == SEED and runner.device.type == "cpu":
                # vLLM cannot take a sample back there: torch's generators have no offset.
                count = left if left <= budget else 0
            if count and len(counts) < runner.max_num_reqs:
                counts[request.name] = count
                budget -= count
        return counts

    def _execute(self, counts: dict[str, int]) -> None:
        output, grammar = self._output(counts), self._grammar(counts)
        self._before(counts)
        seed = int(self.rng.integers(2**31))
        # A copy each: vLLM keeps the lists of a scheduler output and extends them.
        for runner in self.runners:
            self._forward(runner, copy.deepcopy(output))
        if not counts:
            self._compare("after an idle step")
        else:
            self._compare(f"before sampling of {counts}")
            sampled = [self._sample(r, copy.deepcopy(grammar), seed) for r in self.runners]
            self._compare(f"after {counts}", *sampled)
            self._book(counts, sampled[0])
            self.steps += 1
        for request in self.live.values():
            request.in_batch = request.name in counts

    def _compare(self, when: str, *outputs: Any) -> None:
        """Compare the runners, what their preparations returned, and their outputs, if given."""
        # Now and then without the short cut, which does not see which tensors share their memory.
        thorough = self.steps % 100 == 0
        compare = first_difference if thorough else difference
        pairs = [("", self.runners), ("returned value", self.results), ("output", outputs)]
        for what, pair in pairs:
            found = compare(*pair) if pair else None
            if found is not None:
                raise OutputsDiffer(f"step {self.steps}, {when}: {what}{found}")
        if thorough:
            one, other = map(moved, self._places, self.runners)
            if one != other:
                raise OutputsDiffer(f"step {self.steps}, {when}: {min(one ^ other)} moved in one")

    @torch.inference_mode()
    def _forward(self, runner: Any, output: Any) -> None:
        runner.execute_model(output)
        for new in output.scheduled_new_reqs:
            # vLLM leaves the rows of later chunks uninitialized: give both twins the same.
            rank = new.sampling_params.prompt_logprobs
            if rank is not None and new.prompt_token_ids is not None:
                runner.requests[new.req_id].in_progress_prompt_logprobs_cpu = _no_logprobs(
                    len(new.prompt_token_ids) - 1, rank + 1
                )

    @torch.inference_mode()
    def _sample(self, runner: Any, grammar: Any, seed: int) -> Any:
        # Unseeded requests draw from the device's global generator.
        if runner.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.cuda.manual_seed(seed)
        output = runner.sample_tokens(grammar)
        return output.get_output() if hasattr(output, "get_output") else output

    def _book(self, counts: dict[str, int], output: Any) -> None:
        """What the scheduler does with the runner's output."""
        for name, count in counts.items():
            request = self.live[name]
            request.computed += count
            sampled = output.sampled_token_ids[output.req_id_to_index[name]]
            assert (len(sampled) == 1) == (request.computed == request.known)
            request.tokens.extend(map(int, sampled))
            if len(sampled) and request.stops(self.max_model_len):
                self.seen[MODEL_LENGTH] += request.known == self.max_model_len
                self.finish(request)
        order = list(self.runners[0].input_batch.req_ids)
        stayed = [name for name in self._order if name in order]
        places = [order.index(name) for name in stayed]
        self.seen[REORDERED] += places != sorted(places)
        self.seen[CONDENSED] += any(
            self._order.index(n) != p for n, p in zip(stayed, places, strict=True)
        )
        self.seen[ALONE_AGAIN] += len(order) == 1 < len(self._order)
        self._order = order

    def _before(self, counts: dict[str, int]) -> None:
        """Count what is special in the step."""
        for name, count in counts.items():
            request = self.live[name]
            self.seen[request.asked] += 1
            self.seen[CHUNKED_PREFILL] += request.computed + count < len(request.prompt)
            tokens = request.computed + count
            self.seen[FULL_ROW] += self.pool.is_full(request.blocks, self.max_model_len)
            self.seen[NEW_BLOCK] += count == 1 and any(
                (tokens - 1) % size == 0 for size in self.block_sizes
            )

    def _output(self, counts: dict[str, int]) -> Any:
        from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

        new, cached = [], CachedRequestData.make_empty()
        for name, count in counts.items():
            request = self.live[name]
            added = self.pool.extend(request.blocks, request.computed + count)
            if request.fresh:
                new.append(_new_request(request))
            else:
                self._cache(cached, request, added)
            request.fresh = request.preempted = False
        finished, self.finished = self.finished, set()
        return dataclasses.replace(
            SchedulerOutput.make_empty(),
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            finished_req_ids=finished,
            has_structured_output_requests=any(
                self.live[name].asked == STRUCTURED for name in counts
            ),
        )

    def _cache(self, cached: Any, request: Request, added: list[list[int]]) -> None:
        blocks = request.blocks if request.preempted else added
        cached.req_ids.append(request.name)
        if request.preempted:
            cached.resumed_req_ids.add(request.name)
            self.seen[RESUMED] += 1
        # Not for a request that was preempted and resumed between two steps, either: vLLM's
        # scheduler forgets who was in the batch when it takes everybody's blocks.
        if not request.in_batch or request.preempted:
            cached.all_token_ids[request.name] = request.prompt + request.tokens
        given = tuple(list(group) for group in blocks)
        cached.new_block_ids.append(given if request.preempted or any(given) else None)
        cached.num_computed_tokens.append(request.computed)
        cached.num_output_tokens.append(len(request.tokens))

    def _grammar(self, counts: dict[str, int]) -> Any:
        """A random bitmask of allowed tokens for each request with structured output."""
        from vllm.v1.core.sched.output import GrammarOutput

        names = [
            name
            for name, count in counts.items()
            if self.live[name].asked == STRUCTURED
            and self.live[name].computed + count == self.live[name].known
        ]
        if not names:
            return None
        words = self.rng.integers(-(2**31), 2**31, (len(names), -(-VOCAB_SIZE // 32)))
        return GrammarOutput(names, words.astype(np.int32))


def _new_request(request: Request) -> Any:
    from vllm.v1.core.sched.output import NewRequestData

    return NewRequestData(
        req_id=request.name,
        prompt_token_ids=(
            None if request.embeds is not None and request.is_token is None else [*request.prompt]
        ),
        prompt_embeds=request.embeds,
        prompt_is_token_ids=request.is_token,
        mm_features=[],
        sampling_params=request.params,
        pooling_params=None,
        block_ids=tuple(list(group) for group in request.blocks),
        num_computed_tokens=request.computed,
        lora_request=None,
    )


def _no_logprobs(tokens: int, ranks: int) -> Any:
    from vllm.v1.outputs import LogprobsTensors

    empty = LogprobsTensors.empty_cpu(tokens, ranks)
    for tensor in (empty.logprob_token_ids, empty.logprobs, empty.selected_token_ranks):
        tensor.zero_()
    return empty


def _image_positions(request: Any) -> None:
    """Three different rows and a delta of the request's own, as after an image."""
    length = request.num_prompt_tokens
    rows = torch.arange(length, dtype=torch.int64).repeat(3, 1)
    request.mrope_positions = rows + torch.arange(3)[:, None] * (length % 3)
    request.mrope_position_delta = -(length % 11)

"""Steady single-token decode: the scheduler outputs, and one runner driven through them.

A step is what vLLM's `execute_model` and `sample_tokens` do around the forward pass: the
scheduler's output is applied by `_update_states`, the inputs are prepared, and the sampled token
is booked by `_bookkeeping_sync`. All three are the runner's own methods.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from bench_prep.decode.model import VOCAB_SIZE
from bench_prep.settings import RunSettings

Prepare = Callable[[Any, Any], Any]
REQUEST_ID = "bench-prep"
_SEED = 20240229
#: Bytes between the addresses of consecutive sampled tokens: the granularity of torch's caching
#: allocator, from which a sampler takes its output.
_TOKEN_STRIDE = 512 // 4


@dataclasses.dataclass(frozen=True)
class Workload:
    """The one request of a run and every step's fresh token; both arms get the same.

    `prompt` has `position` entries: token ids, or `[position, hidden]` embeddings.
    `block_ids[g]` are the blocks of KV group g in the order in which the request gets them:
    distinct over all groups and in no regular order, so that a wrong block is a wrong slot.
    `seed` draws all of it, and the sampled tokens.
    """

    position: int
    last_position: int
    block_sizes: tuple[int, ...]
    prompt_token_ids: list[int] | None
    prompt_embeds: torch.Tensor | None
    block_ids: tuple[list[int], ...]
    seed: int

    @classmethod
    def make(
        cls,
        settings: RunSettings,
        hidden_size: int,
        dtype: torch.dtype,
        last: int | None = None,
        seed: int = _SEED,
    ) -> Workload:
        """The request of these settings, decoded up to position `last` or the model's end."""
        embeds = tokens = None
        if settings.prompt_embeds:
            generator = torch.Generator().manual_seed(seed)
            embeds = torch.randn(settings.position, hidden_size, generator=generator).to(dtype)
        else:
            tokens = [0] * settings.position
        counts = [-(-settings.max_model_len // size) for size in settings.block_sizes]
        return cls(
            position=settings.position,
            # The token sampled by the last step must still fit into the model's length.
            last_position=settings.max_model_len - 2 if last is None else last,
            block_sizes=settings.block_sizes,
            prompt_token_ids=tokens,
            prompt_embeds=embeds,
            block_ids=tuple([0] * count for count in counts),
            seed=seed,
        ).renewed(seed)

    def renewed(self, seed: int) -> Workload:
        """A request of the same shape with other tokens in other blocks.

        The prompt's embeddings stay: no decode step reads them.
        """
        rng = np.random.default_rng(seed)
        counts = [len(ids) for ids in self.block_ids]
        ids = rng.permutation(np.arange(1, sum(counts) + 1))
        split = np.split(ids, np.cumsum(counts)[:-1])
        tokens = self.prompt_token_ids and rng.integers(0, VOCAB_SIZE, self.position).tolist()
        return dataclasses.replace(
            self,
            prompt_token_ids=tokens,
            block_ids=tuple(part.tolist() for part in split),
            seed=seed,
        )

    def requests(self, seed: int) -> Iterator[Workload]:
        """One after the other, all `renewed`: the whole sequence is drawn by `seed`."""
        for lap in itertools.count():
            yield self.renewed(int(np.random.default_rng([seed, lap]).integers(2**62)))

    def sampled(self, steps: int) -> np.ndarray[Any, Any]:
        """The tokens that `steps` steps sample, int32."""
        rng = np.random.default_rng(self.seed + 1)
        return rng.integers(0, VOCAB_SIZE, steps, dtype=np.int32)

    def blocks_before(self, group: int, tokens: int) -> list[int]:
        """The blocks of a group that hold the first `tokens` tokens."""
        return self.block_ids[group][: -(-tokens // self.block_sizes[group])]

    def new_blocks(self, position: int) -> tuple[list[int], ...] | None:
        """The blocks that the token at `position` needs beyond those before it, per group."""
        new = tuple(
            [self.block_ids[g][position // size]] if position % size == 0 else []
            for g, size in enumerate(self.block_sizes)
        )
        return new if any(new) else None

    def boundaries(self, position: int) -> int:
        """How many groups begin a new block with the token at `position`."""
        return sum(position % size == 0 for size in self.block_sizes)


#: The attribute of an error that a preparation raised: the `Decoder` that called it.
RAISED_BY = "raised_by"


class Check(Protocol):
    """Looks at steps that are being timed, outside the clock."""

    def at_each(self, decoder: Decoder) -> None:
        """As `at_step`, of every step of a slice, the untimed first ones too."""

    def at_step(self, decoder: Decoder) -> None:
        """The step's preparation has been called: the forward pass would run now."""

    def after_step(self, decoder: Decoder) -> None:
        """The step is over."""


class Decoder:
    """One runner in decode. `prepare` is the arm's preparation, vLLM's own or a candidate's.

    Attributes:
        result: what the last preparation returned.
        taken: decode steps taken so far.
        processor_ns: processor time that the process has spent since `begin`, on all its
            threads, in `counted` steps of the first pass: nanoseconds. Restarts and checks
            are left out.
    """

    def __init__(self, runner: Any, workload: Workload, prepare: Prepare) -> None:
        self.runner = runner
        self.workload = workload
        self.prepare = prepare
        self.position = -1
        self.result: Any = None
        self.taken = 0
        self.processor_ns = self.counted = 0
        self._since: int | None = None
        self._embeds: tuple[torch.Tensor, torch.Tensor] | None = None  # the request's, and ours
        self._requests: Iterator[Workload] | None = None
        self._check: Check | None = None
        self._due: Sequence[int] = ()
        self._passes = self._to_check = 0
        self._step = 0
        self._output: Any = None
        self._num_scheduled = np.ones(1, dtype=np.int32)
        self._hidden = torch.empty(1, 1, device=runner.device)
        self._tokens = torch.empty(0, _TOKEN_STRIDE, dtype=torch.int32, device=runner.device)

    def reserve_tokens(self, steps: int) -> None:
        """Make room for a fresh sampled token for each of `steps` steps."""
        if len(self._tokens) < steps:
            self._tokens = torch.zeros(
                steps, _TOKEN_STRIDE, dtype=torch.int32, device=self.runner.device
            )

    def begin(self, requests: Iterator[Workload], check: Check, due: Sequence[int]) -> None:
        """Before something is timed: each restart takes the next of `requests`.

        `check` looks at the step with index `due[i]` of the i-th pass.
        """
        self._requests, self._check, self._due = requests, check, due
        self._passes = self.processor_ns = self.counted = 0

    def restart(self) -> None:
        """Begin a pass: the next step is the first decode step of the request."""
        passed = self._passes
        self._passes += 1
        self._to_check = self._due[passed] + 1 if passed < len(self._due) else 0
        self._restart()

    @torch.inference_mode()
    def _restart(self) -> None:
        """Put the request into the batch so that the next step is its first decode step.

        Its prompt has `position` tokens, all but the last computed; the step that computes the
        last one and samples the first output token is taken here, untimed.
        """
        from vllm import SamplingParams
        from vllm.v1.core.sched.output import NewRequestData

        if self._requests is not None:
            self.workload = next(self._requests)
        work = self.workload
        self._tokens[:, 0] = torch.from_numpy(work.sampled(len(self._tokens)))
        new = NewRequestData(
            req_id=REQUEST_ID,
            # Of its own, as the embeddings: nothing one runner does to it may reach the other.
            prompt_token_ids=work.prompt_token_ids and list(work.prompt_token_ids),
            prompt_embeds=self._own_embeds(),
            mm_features=[],
            sampling_params=SamplingParams(temperature=0.0, max_tokens=None),
            pooling_params=None,
            block_ids=tuple(
                list(work.blocks_before(g, work.position)) for g in range(len(work.block_sizes))
            ),
            num_computed_tokens=work.position - 1,
            lora_request=None,
        )
        finished = {REQUEST_ID} if REQUEST_ID in self.runner.requests else set()
        self._step = 0
        self._begin(_scheduler_output(scheduled_new_reqs=[new], finished_req_ids=finished))
        self.call()
        self.position = work.position - 1
        self.book()
        self._since = time.process_time_ns()

    def _own_embeds(self) -> torch.Tensor | None:
        embeds = self.workload.prompt_embeds
        if embeds is None:
            return None
        if self._embeds is None or self._embeds[0] is not embeds:
            self._embeds = embeds, embeds.clone()
        return self._embeds[1]

    @torch.inference_mode()
    def end(self) -> None:
        """Take the request out of the batch."""
        self._begin(_scheduler_output(tokens=0, finished_req_ids={REQUEST_ID}))

    @torch.inference_mode()
    def before(self) -> None:
        """Everything before the preparation: schedule one token, update the states."""
        from vllm.v1.core.sched.output import CachedRequestData

        if self.position >= self.workload.last_position:
            self._restart()
        self.taken += 1
        self.position += 1
        cached = CachedRequestData(
            req_ids=[REQUEST_ID],
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[self.workload.new_blocks(self.position)],
            num_computed_tokens=[self.position],
            num_output_tokens=[self.position - self.workload.position + 1],
        )
        self._begin(_scheduler_output(scheduled_cached_reqs=cached))

    def _begin(self, output: Any) -> None:
        event = self.runner.prepare_inputs_event
        if event is not None:  # as `synchronize_input_prep` does on entry
            event.synchronize()
        self.runner._update_states(output)
        self._output = output

    @property
    def arguments(self) -> tuple[Any, Any]:
        """What the preparation is given: vLLM's `SchedulerOutput`, and int32 tokens per request."""
        return self._output, self._num_scheduled

    @property
    def last_token(self) -> torch.Tensor:
        """The sampled token that was booked last: int32 of shape [1, 1] on the device."""
        return self._tokens[self._step - 1 : self._step, :1]

    def call(self) -> Any:
        """The preparation itself: all that is timed. What it raises says which decoder's it is."""
        try:
            return self.prepare(self._output, self._num_scheduled)
        except Exception as error:
            vars(error)[RAISED_BY] = self
            raise

    def after(self) -> None:
        """Everything after the preparation, as after a forward pass; and the checks."""
        self._to_check -= 1
        if self._check is not None:
            self._check.at_each(self)
        if self._to_check or self._check is None:
            self.book()
            now = time.process_time_ns()
            if self._since is not None and self._passes == 1:
                self.processor_ns += now - self._since
                self.counted += 1
            self._since = now
        else:
            self._check.at_step(self)
            self.book()
            self._check.after_step(self)
            self._since = time.process_time_ns()

    @torch.inference_mode()
    def book(self) -> None:
        """Book a new sampled token."""
        from vllm.v1.outputs import SamplerOutput

        event = self.runner.prepare_inputs_event
        if event is not None:  # as `synchronize_input_prep` does on exit
            event.record()
        token = self._tokens[self._step : self._step + 1, :1]
        self._step += 1
        self.runner.input_batch.prev_sampled_token_ids = None
        self.runner._bookkeeping_sync(
            self._output, SamplerOutput(token, None), None, self._hidden, 1
        )

    @torch.inference_mode()
    def prepare_step(self) -> Any:
        """The untimed step up to the forward pass; returns what the preparation returned."""
        self.before()
        self.result = self.call()
        return self.result

    def step(self) -> Any:
        """One whole untimed step; returns what the preparation returned."""
        result = self.prepare_step()
        self.after()
        return result

    def synchronize(self) -> None:
        """Wait for the stream on which the forward pass would be launched, and no other."""
        if self.runner.device.type != "cpu":
            torch.cuda.current_stream(self.runner.device).synchronize()


def use_once(runner: Any, workload: Workload) -> None:
    """Take some steps by vLLM's own preparation, and let the request go again.

    Parts of vLLM, Triton and torch come to be when they are first used, such as compiled kernels.
    """
    decoder = Decoder(runner, workload, runner._prepare_inputs)
    decoder.reserve_tokens(4)
    decoder.restart()
    for _ in range(2):
        decoder.step()
    decoder.end()


def _scheduler_output(tokens: int = 1, **fields: Any) -> Any:
    from vllm.v1.core.sched.output import SchedulerOutput

    return dataclasses.replace(
        SchedulerOutput.make_empty(),
        num_scheduled_tokens={REQUEST_ID: 1} if tokens else {},
        total_num_scheduled_tokens=tokens,
        **fields,
    )

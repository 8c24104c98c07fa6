"""What can happen to requests between and in steps: the operations of which traces are made.

Both drivers use them, hypothesis' state machine and the seeded one; they differ only in who draws.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch

from bench_prep.decode.model import VOCAB_SIZE
from bench_prep.prove.source.requests import ASKED, PENALTIES, Draw, Request, sampling_params
from bench_prep.prove.source.twins import PREFIX_HIT, Twins

Kind = Literal["arrival", "departure", "change", "step"]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One thing that can happen; `possible` says whether it can now.

    An operation of the kind `step` takes one step of the runners, the others only change what the
    next step schedules. `weight` is its share among those of its kind in seeded traces.
    """

    name: str
    kind: Kind
    weight: int
    possible: Callable[[Twins], bool]
    apply: Callable[[Twins, Draw], None]


def _arrive(twins: Twins, draw: Draw) -> None:
    asked = ASKED[draw(0, len(ASKED) - 1)]
    if asked == PENALTIES and any(map(_unwritten, twins.live.values())) and _asynchronous(twins):
        asked = "greedy"
    twins.add(_tokens(draw, _length(twins, draw)), asked=asked, params=sampling_params(asked, draw))


def _arrive_again(twins: Twins, draw: Draw) -> None:
    """Aborted and resubmitted under the same name, so finished and new in one step."""
    request = _chosen(twins, draw, lambda r: not r.fresh)
    twins.finish(request)
    prompt = _tokens(draw, _length(twins, draw))
    twins.add(prompt, request.name, asked=request.asked, params=request.params)


def _arrive_with_prefix(twins: Twins, draw: Draw) -> None:
    """A prefix-cache hit: the first blocks are another request's, and already computed."""
    donor = _chosen(twins, draw, lambda r: _cached(twins, r) > 0)
    whole = math.lcm(*twins.block_sizes)
    hit = whole * draw(1, _cached(twins, donor) // whole)
    prompt = (donor.prompt + donor.tokens)[:hit]
    prompt += _tokens(draw, draw(1, twins.max_model_len - 1 - hit))
    request = twins.add(prompt, params=sampling_params("greedy", draw), computed=hit)
    request.blocks = twins.pool.share(
        donor.blocks, hit, window=draw(1, hit) if draw(0, 1) else None
    )
    twins.seen[PREFIX_HIT] += 1


def _arrive_with_embeds(twins: Twins, draw: Draw) -> None:
    """A prompt of embeddings, alone or mixed with token ids."""
    runner = twins.runners[0]
    length = _length(twins, draw)
    values = torch.tensor(_tokens(draw, length)) % 128 / 64
    embeds = values[:, None].repeat(1, runner.inputs_embeds_size).to(runner.dtype)
    every = draw(0, 3)  # 0: no token ids
    if _asynchronous(twins) and any(r.asked == PENALTIES for r in twins.live.values()):
        every = max(every, 1)
    mixed = [index % every == 0 for index in range(length)] if every else None
    prompt = _tokens(draw, length) if mixed else [0] * length
    twins.add(prompt, embeds=embeds, is_token=mixed, params=sampling_params("greedy", draw))


def _preempt(twins: Twins, draw: Draw) -> None:
    """Preempted and resumed some steps later; the first blocks of it may still be cached then."""
    request = _chosen(twins, draw, lambda r: not r.fresh)
    whole = math.lcm(*twins.block_sizes)
    kept = whole * draw(0, _cached(twins, request) // whole)
    blocks = twins.pool.share(request.blocks, kept)
    twins.preempt(request)
    request.blocks, request.computed, request.pause = blocks, kept, draw(0, 6)


def _preempt_all(twins: Twins, draw: Draw) -> None:
    """As when vLLM's prefix cache is reset: preempted and resumed while still in the batch."""
    for request in twins.live.values():
        twins.preempt(request)


def _finish_where(condition: Callable[[Request], bool]) -> Callable[[Twins, Draw], None]:
    return lambda twins, draw: twins.finish(_chosen(twins, draw, condition))


def _finish_all_but_one(twins: Twins, draw: Draw) -> None:
    kept = _chosen(twins, draw, lambda r: True)
    for request in [r for r in twins.live.values() if r is not kept]:
        twins.finish(request)


def _step(twins: Twins, draw: Draw) -> None:
    twins.step()


def _step_in_chunks(twins: Twins, draw: Draw) -> None:
    twins.step(chunk=draw(1, 20) if draw(0, 1) else 1)


def _step_of_some(twins: Twins, draw: Draw) -> None:
    """The others pause: out of the batch, their blocks kept."""
    twins.step(only=[r for r in twins.live.values() if draw(0, 1)])


def _idle(twins: Twins, draw: Draw) -> None:
    twins.idle()


def _dummy_run(twins: Twins, draw: Draw) -> None:
    twins.dummy_run(draw(1, twins.runners[0].max_num_tokens), attention=bool(draw(0, 1)))


def _some(condition: Callable[[Request], bool]) -> Callable[[Twins], bool]:
    return lambda twins: any(map(condition, twins.live.values()))


def _room(twins: Twins) -> bool:
    return bool(len(twins.live) < twins.runners[0].max_num_reqs)


OPERATIONS: tuple[Operation, ...] = (
    Operation("arrive", "arrival", 6, _room, _arrive),
    Operation(
        "arrive with a cached prefix",
        "arrival",
        3,
        lambda twins: _room(twins) and any(_cached(twins, r) for r in twins.live.values()),
        _arrive_with_prefix,
    ),
    Operation(
        "arrive with embeddings",
        "arrival",
        6,
        lambda twins: _room(twins) and bool(twins.runners[0].enable_prompt_embeds),
        _arrive_with_embeds,
    ),
    Operation(
        "finish", "departure", 4, _some(lambda r: r.in_batch), _finish_where(lambda r: r.in_batch)
    ),
    Operation(
        "abort while preempted",
        "departure",
        20,  # seldom possible
        _some(lambda r: r.preempted),
        _finish_where(lambda r: r.preempted),
    ),
    Operation(
        "abort before the first step",
        "departure",
        3,
        _some(lambda r: r.fresh),
        _finish_where(lambda r: r.fresh),
    ),
    Operation(
        "finish all but one", "departure", 1, lambda twins: len(twins.live) > 1, _finish_all_but_one
    ),
    Operation("preempt", "change", 6, _some(lambda r: not r.fresh), _preempt),
    Operation("preempt all", "change", 1, _some(lambda r: r.in_batch), _preempt_all),
    Operation("abort and resubmit", "change", 1, _some(lambda r: not r.fresh), _arrive_again),
    Operation("dummy run", "change", 3, lambda twins: True, _dummy_run),
    Operation("step", "step", 30, lambda twins: bool(twins.live), _step),
    Operation("step in chunks", "step", 4, lambda twins: bool(twins.live), _step_in_chunks),
    Operation("step of some", "step", 2, lambda twins: bool(twins.live), _step_of_some),
    Operation("idle step", "step", 1, lambda twins: True, _idle),
)


def _chosen(twins: Twins, draw: Draw, condition: Callable[[Request], bool]) -> Request:
    found = [r for r in twins.live.values() if condition(r)]
    return found[draw(0, len(found) - 1)]


def _asynchronous(twins: Twins) -> bool:
    """Whether rows of token ids may keep placeholders (-1) of requests that have left them.

    Penalties of any request in the batch read the ids of `_unwritten` prompts too, and a
    placeholder among them ends vLLM's own path: on CUDA with the whole process.
    """
    return bool(twins.runners[0].use_async_scheduling)


def _unwritten(request: Request) -> bool:
    """Whether vLLM leaves the token ids of the prompt as they are: it has only embeddings."""
    return request.embeds is not None and request.is_token is None


def _cached(twins: Twins, request: Request) -> int:
    """The longest computed prefix of whole blocks that leaves room for a token behind it."""
    if request.fresh or request.embeds is not None:
        return 0
    whole = math.lcm(*twins.block_sizes)
    longest = min(request.computed, request.known - 1, twins.max_model_len - 2)
    return longest // whole * whole


def _length(twins: Twins, draw: Draw) -> int:
    """A prompt's length: short, a block boundary, or anything up to the model's length."""
    most = twins.max_model_len - 1
    boundary = twins.block_sizes[0] * draw(1, 4) + draw(-2, 2)
    return min(most, (draw(1, 12), boundary, draw(1, most), most - draw(0, 5))[draw(0, 3)])


def _tokens(draw: Draw, length: int) -> list[int]:
    first, stride = draw(0, VOCAB_SIZE - 1), draw(1, VOCAB_SIZE - 1)
    return [(first + index * stride) % VOCAB_SIZE for index in range(length)]

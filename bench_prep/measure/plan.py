"""The A/B/A plan: in every round the baseline, the candidate and the baseline again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench_prep.measure.clocks import Device, Steps, time_block
from bench_prep.measure.records import ARMS, Arm, Block, Round


def rounds(
    baseline: Steps,
    candidate: Steps,
    *,
    count: int,
    warmup: int,
    iters: int,
    device: Device | None,
    after_block: Callable[[Arm], None],
) -> Iterator[Round]:
    """Time `count` rounds and yield each as it is finished.

    Every block has `iters` timed steps after `warmup` untimed ones and starts from the same
    first step. `after_block` is called between blocks, untimed, with the arm that has just run.
    """
    for _ in range(count):
        blocks = []
        for arm in ARMS:
            steps = candidate if arm == "candidate" else baseline
            samples = time_block(steps, warmup=warmup, iters=iters, device=device)
            blocks.append(Block(arm, samples))
            after_block(arm)
        yield Round((blocks[0], blocks[1], blocks[2]))

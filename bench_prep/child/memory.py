"""What sizes need of the host's memory, before anything is built or launched for them."""

from __future__ import annotations

from typing import Protocol

import psutil

from bench_prep.errors import Missing

_GIB = 2**30
#: Bytes of a token: in each row of a batch, its ID and whether it has one; of the longest request,
#: in a list of Python's and vLLM's counters; of a step, on the host and for the device, where
#: most of it is an embedding of the small model.
_IN_ROW, _IN_REQUEST, _IN_STEP = 5, 48, 1152
#: Bytes of a block in a row of a block table, on the host and for the device.
_BLOCK = 8
#: Copies of a runner's host buffers: two runners and two states that are compared.
_COPIES = 4
#: Rows of an engine's batch: the fewest that vLLM's own defaults have.
_ENGINES_ROWS = 128


class Sizes(Protocol):
    """Of a runner, in tokens and requests."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def max_num_reqs(self) -> int: ...
    @property
    def max_num_tokens(self) -> int: ...
    @property
    def block_sizes(self) -> tuple[int, ...]: ...


def require_runners_memory(sizes: Sizes) -> None:
    """For a pair of runners of these sizes and what is compared of them.

    Raises:
        Missing: more is needed than there is.
    """
    blocks = sum(-(-sizes.max_model_len // size) for size in sizes.block_sizes)
    row = _IN_ROW * sizes.max_model_len + _BLOCK * blocks
    step = _IN_STEP * sizes.max_num_tokens
    _require(_COPIES * (sizes.max_num_reqs * row + _IN_REQUEST * sizes.max_model_len + step))


def require_engines_memory(max_model_len: int) -> None:
    """For an engine with requests of so many tokens, without its model and KV cache.

    Raises:
        Missing: more is needed than there is.
    """
    _require((_ENGINES_ROWS * _IN_ROW + _IN_REQUEST) * max_model_len)


def _require(needed: int) -> None:
    """On a host that lends more memory than it has, a process is killed only when it is used."""
    free = psutil.virtual_memory().available
    if needed > free:
        raise Missing(
            f"these sizes need about {-(-needed // _GIB):,} GiB of memory, and "
            f"{free / _GIB:.1f} are free",
            "choose smaller ones, or free some memory",
        )

"""Garbage in the outputs of a step before it is prepared, so that what is left unwritten shows."""

from __future__ import annotations

import re
from typing import Any

import torch

from bench_prep.decode.equality import copied, state
from bench_prep.decode.steps import Decoder
from bench_prep.snapshot import difference_between, leaves

#: What is written over an output: eight or four bytes 0xA5, which no token, position or slot is.
_GARBAGE = {torch.int64: -0x5A5A5A5A5A5A5A5B, torch.int32: -0x5A5A5A5B}
#: Names of host buffers, which on the CPU platform are on the same device as the outputs.
_OF_HOST = re.compile(r"([._]cpu|\.np|_cpu_tensor)$")
#: Steps in which an element must change to be an output of every step.
_STEPS = 3
#: For so many cycles of its clock a device is held: about 20 ms, far longer than a preparation.
_HELD_CYCLES = 30_000_000


class Poison:
    """The device-side elements that vLLM's own preparation writes anew in every step.

    Of one decode step these are its token id, position, lengths and slots. What a preparation
    leaves alike from step to step is not among them, nor is what the host reads.
    """

    def __init__(self, where: dict[str, tuple[torch.Tensor, ...]]) -> None:
        self._where = where

    @property
    def buffers(self) -> list[str]:
        """The paths of the poisoned buffers."""
        return [*self._where]

    @classmethod
    def find(cls, baseline: Decoder, candidate: Decoder) -> Poison:
        """Take the same steps with both, and see which elements the baseline writes.

        Only what the baseline overwrites whatever was in it is kept.
        """
        found = cls(_written(baseline))
        _walk(candidate)
        expected = copied(state(baseline))

        def harmless(poison: Poison) -> bool:
            _walk(baseline, poison)
            _walk(candidate)
            return difference_between(expected, copied(state(baseline))) is None

        if harmless(found):
            return found
        parts = (cls({path: where}) for path, where in found._where.items())
        return cls(
            {path: part._where[path] for part in parts if harmless(part) for path in part._where}
        )

    def apply(self, decoder: Decoder) -> None:
        """Overwrite the outputs, after `before` and ahead of `call`.

        On a device this and the sampled token wait behind a held stream: work that a candidate
        puts on another stream without waiting for this one sees neither.
        """
        token = decoder.last_token
        # All of it before the stream is held: a number that is still on the host would wait for it.
        garbage = {
            dtype: torch.full((), value, dtype=dtype, device=token.device)
            for dtype, value in _GARBAGE.items()
        }
        poisoned = [
            (tensor, self._where[path])
            for path, tensor in _outputs(decoder.runner)
            if path in self._where
        ]
        if token.device.type != "cpu":
            sampled = token.clone()
            token.copy_(garbage[token.dtype])
            decoder.synchronize()
            torch.cuda._sleep(_HELD_CYCLES)  # type: ignore[no-untyped-call]
            token.copy_(sampled)
        for tensor, where in poisoned:
            tensor.index_put_(where, garbage[tensor.dtype])

    def read(self, decoder: Decoder) -> dict[str, torch.Tensor]:
        """The outputs as whatever is next on the current stream finds them; does not wait."""
        return {
            path: tensor[self._where[path]].clone()
            for path, tensor in _outputs(decoder.runner)
            if path in self._where
        }


def _outputs(runner: Any) -> list[tuple[str, torch.Tensor]]:
    """Whole-number tensors on the runner's device by their paths; no host buffer among them."""
    return [
        (path, value)
        for path, value in leaves(runner, every_path=True)
        if isinstance(value, torch.Tensor)
        and value.device == runner.positions.device
        and value.dtype in _GARBAGE
        and not _OF_HOST.search(path)
    ]


def _written(decoder: Decoder) -> dict[str, tuple[torch.Tensor, ...]]:
    """The elements that change in every one of some steps' preparations."""
    changed: dict[str, torch.Tensor] = {}
    decoder.restart()
    for step in range(_STEPS):
        decoder.before()
        decoder.synchronize()
        before = {path: tensor.clone() for path, tensor in _outputs(decoder.runner)}
        decoder.call()
        decoder.synchronize()
        now = {
            path: tensor != before[path]
            for path, tensor in _outputs(decoder.runner)
            if path in before and tensor.shape == before[path].shape
        }
        changed = now if step == 0 else {p: c & now[p] for p, c in changed.items() if p in now}
        decoder.after()
    return {path: where.nonzero(as_tuple=True) for path, where in changed.items() if where.any()}


def _walk(decoder: Decoder, poison: Poison | None = None) -> None:
    decoder.restart()
    for _ in range(_STEPS):
        decoder.before()
        if poison is not None:
            poison.apply(decoder)
        decoder.call()
        decoder.after()

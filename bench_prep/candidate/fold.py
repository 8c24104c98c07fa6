"""Every step of a timed slice, folded into one number a buffer: do the arms agree in all of them?

What a step has left is read when its clock has stopped. The numbers are sums over a buffer's words
times random odd factors, one for each place: a word that is other, or elsewhere, makes another sum.
Each step has its own, so that what the next one puts right shows, too.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch

from bench_prep.decode.steps import Decoder
from bench_prep.errors import OutputsDiffer
from bench_prep.measure.records import Arm
from bench_prep.snapshot import SCALARS, addresses, leaves, moved

if torch.cuda.is_available():  # with what is imported before a guard is made
    import bench_prep.candidate.fold_kernel  # noqa: F401

Array = np.ndarray[Any, Any]
#: The path of what a preparation returned.
RETURNED = "returned value"
#: Of a buffer on the host so many first bytes are kept in every step: what one request has. To read
#: all of it would take the caches from the next step.
_HEAD = 64
#: A buffer with more rows has one for each request or token: the first is the request's.
_WHOLE_ROWS = 3
#: Of a returned tensor on a device so many first elements are folded.
MOST_RETURNED = 16


class Fold:
    """The sums of one arm's slice.

    Folded are all buffers that stay where they are from request to request. Those on a device are
    folded whole in every step, padding too; of those on the host it is the head, and in the last
    step of the slice all.
    Of those with a row for each request or token it is the first row. Token histories, a row of
    the model's length for each request, are left out: no preparation writes them. `decoder` has
    room for a few tokens, and takes them.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        parts = _parts(decoder)
        # The columns of the sums: what is on the host and what was returned, then the device's.
        parts.sort(key=lambda part: not _on_host(part.memory))
        self._words = [_words(part.memory) for part in parts if _on_host(part.memory)]
        on_device = [part.memory for part in parts if not _on_host(part.memory)]
        parts.insert(len(self._words), _Part(None, [RETURNED], False))
        self._parts = parts
        self._longest = max(_HEAD // 8, *map(len, self._words))
        self._on_device: Any = None
        if on_device:
            from bench_prep.candidate.fold_kernel import DeviceSums

            parts.append(_Part(None, [f"{RETURNED} on the device"], False))
            self._on_device = DeviceSums(on_device, MOST_RETURNED)
            self._longest = max(self._longest, self._on_device.longest)
        heads = [words.view(np.uint8)[:_HEAD] for words in self._words]
        pads = [np.zeros(_HEAD - len(head), np.uint8) for head in heads]
        self._heads = [one for pair in zip(heads, pads, strict=True) for one in pair if len(one)]
        self.begin(0, 1)
        self.add()  # compiles the kernel

    def begin(self, seed: int, steps: int) -> None:
        """Before a slice of so many steps; `seed` draws the factors."""
        whole = np.iinfo(np.int64)
        rng = np.random.default_rng(seed)
        factors = rng.integers(whole.min, whole.max, self._longest, np.int64) | 1
        self._factors = factors
        self._log = np.zeros((steps, len(self._words) * _HEAD), np.uint8)
        self._returned = [0] * steps
        self._last: Any = 0
        self._positions: list[int] = []
        self._result = _Returned(())
        if self._on_device is not None:
            self._on_device.begin(factors, steps)

    def add(self) -> None:
        """Fold what the decoder's last preparation has left and returned; does not wait for it."""
        step, result = len(self._positions), self._decoder.result
        np.concatenate(self._heads, out=self._log[step])
        if step + 1 == len(self._log):
            self._last = [words @ self._factors[: len(words)] for words in self._words]
        if not self._result.same_as(result):
            self._result = _Returned(result)
        self._returned[step] = self._result.sum()
        if self._on_device is not None:
            self._on_device.add(step, self._result.on_device)
        self._positions.append(self._decoder.position)

    def digests(self, *, rows: bool = True) -> dict[str, str]:
        """A text by path that is the same where all steps' sums are.

        Without `rows` there are only buffers of one dimension: rows are longer than a request needs
        and keep what was there before it.

        Raises:
            OutputsDiffer: not all of the slice's steps were folded.
        """
        if len(self._positions) != len(self._log):
            raise OutputsDiffer(
                f"only {len(self._positions)} of the {len(self._log)} steps of a slice were seen",
                "change nothing but the candidate's runner; no timing is reported",
            )
        found: dict[str, str] = {}
        for part, column in zip(self._parts, self._columns().T, strict=True):
            if rows or not part.rows:
                digest = hashlib.sha256(column.tobytes()).hexdigest()
                found |= dict.fromkeys(part.paths, digest)
        return found

    def steps(self, path: str) -> list[tuple[int, int]]:
        """The position and the sum of each step."""
        column = next(i for i, part in enumerate(self._parts) if path in part.paths)
        return [*zip(self._positions, self._columns()[:, column].tolist(), strict=True)]

    def _columns(self) -> Array:
        """A row for each step, a column for each part."""
        heads = self._log.view(np.int64).reshape(len(self._log), len(self._words), -1)
        sums: Array = (heads * self._factors[: heads.shape[2]]).sum(axis=2)
        sums[-1] += self._last
        sums = np.column_stack([sums, self._returned])
        if self._on_device is not None:
            sums = np.concatenate([sums, self._on_device.sums()], axis=1)
        return sums


@dataclass(frozen=True)
class _Part:
    """What is folded of a buffer, all `paths` to it, and whether it has more than one dimension."""

    memory: Any
    paths: list[str]
    rows: bool


def _parts(decoder: Decoder) -> list[_Part]:
    runner = decoder.runner
    decoder.restart()
    decoder.step()
    places = addresses(runner)
    decoder.restart()
    decoder.step()
    gone = moved(places, runner)
    found: dict[tuple[int, int], _Part] = {}
    for path, (address, value) in places.items():
        if path in gone or not _is_plain(value):
            continue
        rows = value.ndim > 1
        if rows and value.shape[1] == runner.max_model_len:
            continue
        part = value[:1] if rows and len(value) > _WHOLE_ROWS else value
        found.setdefault((address, part.nbytes), _Part(part, [], rows)).paths.append(path)
    return [*found.values()]


class _Returned:
    """What a preparation returned; the same objects as in the step before are looked at quickly.

    Only tensors whose memory is one piece, and immutable scalars, can be the same: the memory is
    read anew in each step, and that a tensor still looks into it is asked.

    Attributes:
        on_device: the first elements of its tensors on a device.
    """

    def __init__(self, result: Any) -> None:
        self._known: tuple[Any, ...] = ()
        self._bytes: list[memoryview] = []
        self.on_device: list[torch.Tensor] = []
        if type(result) is tuple and all(map(_can_stay, result)):
            self._known = result
        self._tensors = [one for one in self._known if isinstance(one, torch.Tensor)]
        self._places = [*map(_place, self._tensors)]
        text = []
        for path, value in enumerate(self._known) if self._known else leaves(result):
            if isinstance(value, torch.Tensor | np.ndarray):
                text.append(f"{path} {value.dtype} {tuple(value.shape)}")
                if isinstance(value, torch.Tensor) and not _on_host(value):
                    self.on_device.append(value.reshape(-1)[:MOST_RETURNED])
                    continue
                array = np.ascontiguousarray(value)
                self._bytes.append(array.reshape(-1).view(np.uint8).data)
            else:
                text.append(f"{path} {value!r}")
        self._text = zlib.crc32("\n".join(text).encode())

    def same_as(self, result: Any) -> bool:
        """Whether it is a tuple of the very same objects, which may hold other values."""
        known = self._known
        return (
            type(result) is tuple
            and len(result) == len(known)
            and all(map(is_, result, known))
            and [*map(_place, self._tensors)] == self._places
        )

    def sum(self) -> int:
        """Of what is on the host, as it is now, and what there is on the device."""
        found = self._text
        for one in self._bytes:
            found = zlib.crc32(one, found)
        return found


def _can_stay(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_contiguous()
    return isinstance(value, SCALARS)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor looks, and how."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _on_host(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.device.type == "cpu"


def _is_plain(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_contiguous()
    return bool(value.flags.c_contiguous and not value.dtype.hasobject)


def _words(value: Any) -> Any:
    """The memory of a buffer on the host in the widest words that it has room for."""
    if isinstance(value, torch.Tensor):
        value = value.reshape(-1).view(torch.uint8).numpy()
    flat = value.reshape(-1).view(np.uint8)
    wide = next(one for one in (np.int64, np.int32, np.uint8) if flat.nbytes % one().itemsize == 0)
    return flat.view(wide)


class EveryStep:
    """The folds of both arms, compared after every slice."""

    def __init__(self, baseline: Decoder, candidate: Decoder) -> None:
        self.baseline, self.candidate = Fold(baseline), Fold(candidate)

    def of(self, arm: Arm) -> Fold:
        """The fold of the arm's next slice, and of its last one."""
        return self.candidate if arm == "candidate" else self.baseline

    def require_equal(self, arm: Arm) -> None:
        """After a slice of this arm: each of its steps is that of the slice before.

        Raises:
            OutputsDiffer: naming the position and the buffer.
        """
        if arm == "baseline_before":
            return
        expected, found = self.baseline, self.candidate
        digests = found.digests()
        path = first_other(expected.digests(rows=arm == "candidate"), digests)
        if path is not None:
            raise differ(path, expected.steps(path), found.steps(path), "correct the candidate")


def first_other(expected: dict[str, str], found: dict[str, str]) -> str | None:
    """The first path of two folds' digests that is in both and other."""
    return next((p for p, one in expected.items() if found.get(p, one) != one), None)


def differ(
    path: str, expected: list[tuple[int, int]], found: list[tuple[int, int]], remedy: str
) -> OutputsDiffer:
    """The error for a path whose steps (`Fold.steps`) are other."""
    pairs = enumerate(zip(expected, found, strict=False))
    step, (position, _) = next((i, a) for i, (a, b) in pairs if a != b)
    return OutputsDiffer(
        f"outputs differ at position {position} in a timed block: {path} is other than vLLM's own "
        f"preparation leaves it in step {step + 1} of {len(expected)} of the slice",
        f"{remedy}; no timing is reported",
    )

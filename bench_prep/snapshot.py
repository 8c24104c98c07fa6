"""The whole state that a runner's later code can read, and where two runners differ.

The walk starts at the runner and follows every attribute, list, dict and dataclass, so that a
buffer that vLLM adds tomorrow is compared without anyone listing it. What is left out is named
below with its reason.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Container, Iterator
from typing import Any

import numpy as np
import torch

#: Attributes of any object that are not compared.
EXCLUDED_NAMES = {
    "vllm_config": "configuration: one object shared by both runners, never written by a step",
    "kv_cache_config": "configuration: the geometry of the KV groups, never written by a step",
    "_arange_scratch": "scratch: written and read within one call",
    "encoder_timing_registry": "wall-clock statistics",
    "jit_warmup_registry": "kernels to compile at start-up, not read by a step",
}
#: Types that are not state of a step: code, synchronization, configuration, modules.
EXCLUDED_TYPES: tuple[type, ...] = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    torch.nn.Module,
    torch.Stream,
    torch.Event,
    torch.cuda.Event,
    torch.device,
    torch.dtype,
)
#: Packages whose objects are configuration or machinery, not state of a step.
EXCLUDED_PACKAGES = ("vllm.config", "vllm.multimodal", "transformers", "threading", "_thread")

#: Types whose values are compared as they are.
SCALARS = (int, float, complex, str, bytes, bool, type(None), enum.Enum, np.generic)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first element in which two states differ."""

    buffer: str
    index: tuple[int, ...] | None
    expected: Any
    found: Any

    def __str__(self) -> str:
        where = self.buffer if self.index is None else f"{self.buffer}{list(self.index)}"
        return f"{where}: expected {self.expected}, found {self.found}"


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()


class _Copy(np.ndarray):
    """An array that the walk made: it is no buffer, so it has no place to keep."""


#: The address of each buffer, by its path, and the buffer: alive, so that nothing else gets there.
Places = dict[str, tuple[int, Any]]


def leaves(
    root: Any, *, every_path: bool = False, without: Container[str] = ()
) -> Iterator[tuple[str, Any]]:
    """Every tensor, array and scalar reachable from `root`, with its path.

    Attributes named in `without` are left out.

    Memory that is reachable by several paths (a host buffer and its NumPy view, a device buffer
    that is the host's on the CPU platform) is yielded once, under the first path, or with
    `every_path` under each.
    """
    seen_objects: set[int] = set()
    seen_memory: set[tuple[Any, ...]] = set()
    visited: list[Any] = []  # alive until the end, so that no identity or address is used twice
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, value = stack.pop()
        visited.append(value)
        if isinstance(value, torch.Tensor):
            key: tuple[Any, ...] = (
                value.device.type,
                value.data_ptr(),
                value.shape,
                value.stride(),
                value.dtype,
            )
        elif isinstance(value, np.ndarray):
            key = (
                "cpu",
                value.ctypes.data,
                value.shape,
                tuple(s // value.itemsize for s in value.strides),
                _torch_dtype(value),
            )
        elif isinstance(value, SCALARS):
            yield path, value
            continue
        elif isinstance(value, torch.Generator):
            yield f"{path}.get_state()", value.get_state().cpu().numpy().view(_Copy)
            continue
        else:
            if id(value) not in seen_objects:
                seen_objects.add(id(value))
                stack.extend(reversed(list(_children(path, value, without))))
            continue
        if every_path or key not in seen_memory:
            seen_memory.add(key)
            yield path, value


def _torch_dtype(array: np.ndarray[Any, Any]) -> Any:
    try:
        return torch.from_numpy(array[:0]).dtype
    except (TypeError, ValueError):
        return array.dtype


def _children(path: str, value: Any, without: Container[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
        yield f"{path}.keys()", tuple(map(repr, value))
    elif isinstance(value, (list, tuple)):
        # Token histories: thousands of numbers are one value, not thousands of paths.
        if len(value) > 16 and all(type(item) is int for item in value):
            yield path, np.asarray(value, dtype=np.int64).view(_Copy)
            return
        if value and all(type(item) is list and not item for item in value):
            # vLLM adds an empty list of draft tokens per request it has ever seen; how many
            # there are is never read.
            yield f"{path}.only_empty_lists()", True
            return
        yield f"{path}.len()", len(value)
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, (set, frozenset)):
        yield f"{path}.sorted()", tuple(sorted(map(repr, value)))
    elif not isinstance(value, EXCLUDED_TYPES) and not _excluded_package(value):
        for name, item in _attributes(value).items():
            if name not in EXCLUDED_NAMES and name not in without:
                yield (f"{path}.{name}" if path else name), item


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                attributes[name] = getattr(value, name)
    return attributes


def _excluded_package(value: Any) -> bool:
    module = type(value).__module__
    return any(module == p or module.startswith(p + ".") for p in EXCLUDED_PACKAGES)


def first_difference(expected: Any, found: Any) -> Difference | None:
    """Compare the whole state of two runners, bit by bit; None when they are equal.

    Tensors and arrays are compared as bytes, so that NaN equals NaN and -0.0 differs from 0.0.
    """
    return difference_between(dict(leaves(expected)), dict(leaves(found)))


def difference_between(left: dict[str, Any], right: dict[str, Any]) -> Difference | None:
    """The first difference of two states that are leaves by path; None when they are equal."""
    for path, a in left.items():
        b = right.get(path, ABSENT)
        difference = difference_at(path, a, b)
        if difference is not None:
            return difference
    for path, b in right.items():
        if path not in left:
            return Difference(path, None, ABSENT, _shown(b))
    return None


def addresses(root: Any) -> Places:
    """Where every tensor and array reachable from `root` is.

    Captured graphs and views that were made earlier go on reading where a buffer was, so that a
    buffer that is replaced by an equal one is a difference too.
    """
    return {path: (_address(v), v) for path, v in leaves(root, every_path=True) if _has_place(v)}


def moved(before: Places, root: Any) -> set[str]:
    """The paths of `before` whose buffer is now in other memory, or is gone."""
    now = addresses(root)
    return {path for path, (place, _) in before.items() if path not in now or now[path][0] != place}


def memory(root: Any) -> dict[str, int]:
    """The allocation that every tensor and array is in: the same number where it is shared, as by
    the two sides of a host buffer.
    """
    return {path: _allocation(v) for path, (_, v) in addresses(root).items()}


def shared_memory(one: Any, other: Any) -> tuple[str, str] | None:
    """The first buffers of two states that have bytes in common, by their paths; else None."""
    extents = sorted(
        (*_extent(value), side, path)
        for side, root in enumerate((one, other))
        for path, (_, value) in addresses(root).items()
    )
    ends: list[tuple[tuple[str, int], str]] = [(("", 0), "")] * 2  # of each side, the furthest
    for device, start, end, side, path in extents:
        (where, furthest), other_path = ends[1 - side]
        if where == device and start < furthest:
            return (path, other_path) if side == 0 else (other_path, path)
        if ends[side][0] < (device, end):
            ends[side] = (device, end), path
    return None


def _extent(value: Any) -> tuple[str, int, int]:
    """The device, the first byte and the byte behind the last."""
    if isinstance(value, torch.Tensor):
        size, device = value.element_size(), str(value.device)
        strides = [step * size for step in value.stride()]
    else:
        size, device, strides = value.itemsize, "cpu", list(value.strides)
    spans = [(count - 1) * step for count, step in zip(value.shape, strides, strict=True)]
    start = _address(value)
    return (
        device,
        start + sum(span for span in spans if span < 0),
        start + sum(span for span in spans if span > 0) + size,
    )


def kinds(root: Any) -> dict[str, Any]:
    """What every object reachable from `root` is, by its path: its class, or a function's code.

    A class or a function of another program among them runs when nobody calls it by its name.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    visited: list[Any] = []  # alive until the end, so that no identity is used twice
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, (*SCALARS, _Copy)):
            continue
        visited.append(value)
        found[path] = _kind(value)
        if id(value) not in seen and not isinstance(value, torch.Tensor | np.ndarray):
            seen.add(id(value))
            stack.extend(_children(path, value, ()))
    return found


def _kind(value: Any) -> Any:
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, functools.partial):
        return functools.partial, _kind(value.func)
    if isinstance(value, types.FunctionType):
        return value.__code__
    kind = type(value)
    # vLLM makes some classes anew for each runner.
    return f"{kind.__module__}.{kind.__qualname__}" if "<locals>" in kind.__qualname__ else kind


def _has_place(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() > 0
    return isinstance(value, np.ndarray) and not isinstance(value, _Copy) and value.size > 0


def _address(value: Any) -> int:
    return int(value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data)


def _allocation(value: Any) -> int:
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray | torch.Tensor):
        value = value.base
    return (
        value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else _address(value)
    )


def difference_at(path: str, a: Any, b: Any) -> Difference | None:
    """The first difference between two leaves with the same path; None when they are equal."""
    arrays = (torch.Tensor, np.ndarray)
    if isinstance(a, arrays) and isinstance(b, arrays):
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            a, b = _as_tensor(a), _as_tensor(b)
        if type(a) is not type(b) or a.shape != b.shape or a.dtype != b.dtype:
            return Difference(path, None, _shown(a), _shown(b))
        return None if _same_bytes(a, b) else _locate(path, a, b)
    if type(a) is not type(b) or a != b:
        return Difference(path, None, _shown(a), _shown(b))
    return None


def _as_tensor(array: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array))


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_contiguous() and b.is_contiguous():
        return torch.equal(_bytes(a), _bytes(b))
    return torch.equal(_bytes(a.contiguous()), _bytes(b.contiguous()))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    if not flat.numel():
        return flat.new_empty(0, dtype=torch.uint8)  # its strides may fit no view
    wide = torch.int64 if flat.numel() * flat.element_size() % 8 == 0 else torch.uint8
    aligned = flat.data_ptr() % 8 == 0
    return flat.view(wide if aligned else torch.uint8)


def _locate(path: str, a: torch.Tensor, b: torch.Tensor) -> Difference:
    flat_a, flat_b = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    size = flat_a.element_size()
    differs = (flat_a.view(torch.uint8) != flat_b.view(torch.uint8)).reshape(-1, size).any(dim=1)
    flat_index = int(differs.nonzero()[0])
    index = tuple(int(i) for i in np.unravel_index(flat_index, tuple(a.shape))) if a.dim() else ()
    return Difference(path, index, flat_a[flat_index].item(), flat_b[flat_index].item())


def _shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} tensor of shape {tuple(value.shape)}"
    return value

"""The comparison of two whole states, fast enough for every step of long traces.

Both states are walked side by side, without paths or copies; `snapshot.first_difference` is asked
only when they are not the same, and its verdict counts.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from bench_prep.snapshot import (
    EXCLUDED_NAMES,
    EXCLUDED_PACKAGES,
    EXCLUDED_TYPES,
    SCALARS,
    Difference,
    first_difference,
)

#: Bytes are compared, so that NaN equals NaN and -0.0 differs from 0.0.
_AS_WHOLE_NUMBERS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_LONG = 16  # as in the snapshot: longer lists of whole numbers are one value


def difference(expected: Any, found: Any) -> Difference | None:
    """What `first_difference` says, in a fraction of its time when there is none."""
    return None if same(expected, found) else first_difference(expected, found)


def same(expected: Any, found: Any) -> bool:
    """Whether two states are the same beyond doubt, down to which of their objects are one.

    False may be wrong (of equal states of other structure), True never is.
    """
    partners: dict[int, int] = {}
    taken: set[int] = set()
    alive: list[Any] = []  # until the end, so that no identity is used twice
    on_device: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    stack = [(expected, found)]
    while stack:
        a, b = stack.pop()
        if a is b:
            continue
        kind: Any = type(a)
        # A class may be made anew by each call of a function, such as vLLM's stand-in for events.
        if kind is not type(b) and kind.__qualname__ != type(b).__qualname__:
            return False
        what = _what(kind)
        if what == "scalar":
            if a != b:
                return False
            continue
        if what == "unknown":
            what = "excluded" if isinstance(a, EXCLUDED_TYPES) else "object"
        if what == "excluded":
            continue
        partner = partners.get(id(a))
        if partner is not None:
            if partner != id(b):
                return False
            continue
        if id(b) in taken:
            return False
        partners[id(a)] = id(b)
        taken.add(id(b))
        alive.append((a, b))
        if what == "tensor":
            if a.shape != b.shape or a.dtype is not b.dtype or a.device != b.device:
                return False
            if a.device.type != "cpu":
                on_device.setdefault(a.device, []).append((a, b))
            elif not _same_tensor(a, b):
                return False
        elif what == "array":
            if a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes():
                return False
        elif what == "generator":
            if not torch.equal(a.get_state(), b.get_state()):
                return False
        elif what == "set":
            if a != b:
                return False
        elif what == "sequence":
            if len(a) != len(b):
                return False
            if len(a) > _LONG and set(map(type, a)) == set(map(type, b)) == {int}:
                if a != b:
                    return False
            else:
                stack.extend(zip(a, b, strict=True))
        elif what == "dict":
            if not _push(stack, a, b):
                return False
        elif not (
            _push(stack, _attributes(a), _attributes(b))
            or _push(stack, _state(_attributes(a)), _state(_attributes(b)))
        ):
            return False
    return all(map(same_tensors, on_device.values()))


def same_tensors(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether the tensors of each pair, of equal shapes and types on one device, have equal bytes.

    All are compared at once, because each answer of a device makes the host wait.
    """
    expected, found = (
        torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in side])
        for side in zip(*pairs, strict=True)
    )
    return torch.equal(expected, found)


def _push(stack: list[tuple[Any, Any]], a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    """Push the values of two mappings, unless their keys or the keys' order differ."""
    if list(a) != list(b):
        return False
    stack.extend(
        pair for pair in zip(a.values(), b.values(), strict=True) if pair[0] is not pair[1]
    )
    return True


def _state(attributes: dict[str, Any]) -> dict[str, Any]:
    """Without methods and the like, which one of the twins may have of its own."""
    return {n: value for n, value in attributes.items() if not isinstance(value, EXCLUDED_TYPES)}


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    whole = _AS_WHOLE_NUMBERS.get(a.dtype)
    return torch.equal(a, b) if whole is None else torch.equal(a.view(whole), b.view(whole))


@functools.cache
def _what(kind: type) -> str:
    """How values of a type are compared; `unknown` where only an instance can tell."""
    for name, kinds in (
        ("tensor", torch.Tensor),
        ("array", np.ndarray),
        ("scalar", SCALARS),
        ("generator", torch.Generator),
        ("dict", dict),
        ("sequence", (list, tuple)),
        ("set", (set, frozenset)),
    ):
        if issubclass(kind, kinds):
            return name
    if issubclass(kind, EXCLUDED_TYPES) or any(
        kind.__module__ == package or kind.__module__.startswith(package + ".")
        for package in EXCLUDED_PACKAGES
    ):
        return "excluded"
    return "unknown"


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for cls in kind.__mro__:
        slots = cls.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in found if not name.startswith("__"))


def _attributes(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    own: dict[str, Any] = getattr(value, "__dict__", {})
    slots = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    return {name: item for name, item in (own | slots).items() if name not in EXCLUDED_NAMES}

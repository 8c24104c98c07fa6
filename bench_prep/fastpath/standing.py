"""What stands where the fast path relies on vLLM: asked at first, and whether it still stands.

`own_functions` asks whether it is vLLM's own; that takes a second. Later the same objects must
stand there, and whether a class was touched at all is one number of CPython's.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any

from bench_prep.fastpath import own_functions
from bench_prep.fastpath.block_tables import tracker_of
from bench_prep.fastpath.fingerprint import CPU_SOURCES, RUNNER_METHODS, SOURCES

#: Buffers of the runner that a dispatched step writes.
_BUFFERS = (
    "input_ids",
    "query_start_loc",
    "discard_request_mask",
    "num_accepted_tokens",
    "req_indices",
    "query_pos",
    "num_scheduled_tokens",
)


def replaced(runner_class: type, platform: str) -> str | None:
    """The first thing on vLLM's classes and in its modules that is not vLLM's own, in words."""
    for owner, name in _methods(runner_class, platform):
        if isinstance(owner, types.ModuleType):
            found = own_functions.replaced_function(owner.__name__, name)
        else:
            found = own_functions.replaced_in_class(owner, name)
        if found is not None:
            return f"{found} is not vLLM's own"
    for cls in _classes():
        found = own_functions.replaced_of_class(cls)
        if found is not None:
            return f"{found} is not vLLM's own"
    return None


def replaced_on(runner: Any, ours: tuple[str, ...] = ()) -> str | None:
    """The first method that an object of the runner has instead of its class's, in words.

    `ours` are names on the runner itself that are not looked at.
    """
    batch = runner.input_batch
    tables = batch.block_table.block_tables
    found = _shadowed(runner, [name for name in RUNNER_METHODS if name not in ours])
    buffers = [getattr(runner, name) for name in _BUFFERS]
    for table in tables:
        buffers += [table.block_table, table.slot_mapping]
    for one in (batch, batch.block_table, *tables, *buffers):
        found = found or _shadowed(one, vars(one))
        # Of the tables' class the service gate asks by itself.
        if type(one) not in _classes() and all(one is not table for table in tables):
            found = found or f"{type(one).__module__}.{type(one).__qualname__}"
    return found and f"{found} is not vLLM's own"


def _shadowed(instance: Any, names: Any) -> str | None:
    cls = instance.__class__
    for hook, own in (("__getattribute__", object.__getattribute__), ("__getattr__", None)):
        if getattr(cls, hook, None) is not own:
            return f"{cls.__name__}.{hook}"
    own_names = vars(instance)
    for name in names:
        if (
            name in own_names
            and callable(getattr(cls, name, None))
            and tracker_of(own_names[name]) is None
        ):
            return f"{name} of this {cls.__name__}"
    return None


class Standing:
    """The functions that stood there when the fast path was attached.

    Attributes:
        touched: whether one of the classes was written to since the last look. Always False where
            this Python does not tell.
    """

    def __init__(self, runner: Any) -> None:
        self._class = type(runner)
        self._platform = str(runner.device.type)
        self._before = self._now()
        self.touched = _touched([self._class, *_classes()])

    def changed(self) -> str | None:
        """The first thing that has been replaced since, in words."""
        self.touched = _touched([self._class, *_classes()])
        now = self._now()
        for name, before in self._before.items():
            found = now.get(name, [])
            if len(found) != len(before) or any(
                a is not b for a, b in zip(before, found, strict=True)
            ):
                return f"{name} was replaced"
        return next((f"{name} was added" for name in now if name not in self._before), None)

    def _now(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        places = list(_methods(self._class, self._platform))
        places += [(cls, name) for cls in _classes() for name in vars(cls)]
        for owner, name in places:
            if isinstance(owner, types.ModuleType):
                member = vars(owner).get(name)
            else:
                member = next((vars(c)[name] for c in owner.__mro__ if name in vars(c)), None)
            found[f"{owner.__name__}.{name}"] = [member]
            for function in own_functions.functions_of(member):
                found[f"{owner.__name__}.{name}"] += _parts(function)
                for used in own_functions.names_used(function):
                    value = function.__globals__.get(used)
                    if value is not None:
                        found[f"{function.__module__}.{used}"] = [value, *_parts(value)]
        for cls in (self._class, *_classes()):
            for hook in ("__getattribute__", "__getattr__"):
                found[f"{cls.__name__}.{hook}"] = [getattr(cls, hook, None)]
        return found


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, types.FunctionType):
        yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
        yield from (cell.cell_contents for cell in value.__closure__ or ())


def _methods(runner_class: type, platform: str) -> Iterator[tuple[Any, str]]:
    """Each single method or function of the fingerprint: its class or module, and its name."""
    yield from ((runner_class, name) for name in RUNNER_METHODS)
    for source in SOURCES + (CPU_SOURCES if platform == "cpu" else ()):
        place, _, attribute = source.partition(":")
        *owners, name = attribute.split(".")
        if name and (owners or not name[0].isupper()):
            module = importlib.import_module(place)
            yield functools.reduce(getattr, owners, module), name


@functools.cache
def _classes() -> tuple[type, ...]:
    """Each class of the fingerprint."""
    from vllm.v1.utils import CpuGpuBuffer
    from vllm.v1.worker import block_table, gpu_input_batch

    return (
        block_table.BlockTable,
        block_table.MultiGroupBlockTable,
        CpuGpuBuffer,
        gpu_input_batch.InputBatch,
        gpu_input_batch.CachedRequestState,
    )


def _touched(classes: list[type]) -> Callable[[], bool]:
    offset = version_offset()
    if offset is None:
        return lambda: False
    _ = [getattr(cls, "__init__", None) for cls in classes]  # a looked-up class has a version
    versions = [ctypes.c_uint.from_address(id(cls) + offset) for cls in classes]
    one, two, three, four, five, six = versions
    before = [version.value for version in versions]
    a, b, c, d, e, f = before

    def touched() -> bool:
        return not (
            one.value == a
            and two.value == b
            and three.value == c
            and four.value == d
            and five.value == e
            and six.value == f
        )

    return touched


@functools.cache
def version_offset() -> int | None:
    """Where CPython keeps a class's version, which every write to it or a base of it changes."""

    class Tried:
        name = 0

    def read() -> list[int]:
        _ = Tried.name
        size: int = type.__basicsize__  # type: ignore[assignment]
        return list((ctypes.c_uint * (size // 4)).from_address(id(Tried)))

    def write() -> None:
        Tried.name += 1

    before = read()
    candidates = {index for index, value in enumerate(before) if value}
    for _ in range(3):
        same = read()
        candidates = {index for index in candidates if same[index] == before[index]}
        write()
        before, after = read(), before
        candidates = {index for index in candidates if before[index] > after[index] > 0}
    return 4 * candidates.pop() if len(candidates) == 1 else None

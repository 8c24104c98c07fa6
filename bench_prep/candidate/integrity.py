"""What both arms and the clock run stays what it was before the candidate was loaded.

A candidate lives in the process of its own yardstick. Fingerprints taken before anything of it
runs show whether it has put other code in the place of vLLM's, torch's, NumPy's, the standard
library's or bench-prep's, or has changed a setting of the process that slows the baseline. What
runs machine code of its own (through ctypes, or an extension) can deceive every check that is
made inside the same process; `bench-prep run --against` measures in two.
"""

from __future__ import annotations

import builtins
import functools
import operator
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench_prep.errors import UsageError
from bench_prep.measure.collector import collector_settings

#: Whose code the baseline, the proof and the clock run; a module alone or with all in it.
_WATCHED = frozenset(
    {
        *{"vllm", "bench_prep", "torch", "numpy", "triton"},
        *{"__main__", "builtins", "time", "gc", "threading", "_thread", "statistics", "contextlib"},
        *{"functools", "dataclasses", "collections", "operator", "random", "os", "signal", "json"},
    }
)
#: Of torch's modules those that a preparation and the clock run; its compiler replaces parts of
#: others when it is used.
_OF_TORCH = frozenset(
    {"_C", "_VF", "_jit_internal", "_ops", "_tensor", "_utils", "autograd", "cuda", "functional"}
    | {"overrides", "random", "storage", "types", "utils", "version"}
)
#: Whose constants and objects are watched, too.
_STRICT = frozenset({"vllm", "bench_prep"})
_CONSTANTS = (bool, int, float, str)
_DESCRIPTORS = (property, staticmethod, classmethod, functools.cached_property)


class Code:
    """The code that is there now.

    A namespace is a module, a class, or an object that can be called; of each its functions,
    classes and modules are remembered, of a function its code, its defaults and the functions in
    its closure.
    """

    def __init__(self, modules: Mapping[str, Any], **objects: Any) -> None:
        """Of the watched ones among `modules`, and of the attributes of `objects`."""
        self._namespaces: list[_Namespace] = []
        self._functions: dict[int, tuple[str, types.FunctionType]] = {}
        self._classes: list[type] = []
        self._cells: list[types.CellType] = []
        self._owners: list[str] = []  # of each cell
        self._seen: set[int] = set()
        for name, module in list(modules.items()):
            if issubclass(type(module), types.ModuleType) and _watched(name):
                self._add(name, module)
        for name, value in objects.items():
            self._add_namespace(name, vars(value), strict=True)
        functions = [function for _, function in self._functions.values()]
        self._parts = [
            (part, functions, list(map(part, functions)))
            for part in map(operator.attrgetter, ("__code__", "__defaults__", "__kwdefaults__"))
        ]
        self._bases = [*map(_bases, self._classes)]
        self._contents = [*map(_content, self._cells)]

    def changed(self) -> str | None:
        """The name of something that is no longer what it was, or None."""
        for namespace in self._namespaces:
            name = namespace.changed()
            if name is not None:
                return name
        for part, functions, values in self._parts:
            if not all(map(operator.is_, map(part, functions), values)):
                index = _first_other(map(part, functions), values)
                return [*self._functions.values()][index][0]
        if not all(map(operator.is_, map(_bases, self._classes), self._bases)):
            return self._classes[_first_other(map(_bases, self._classes), self._bases)].__name__
        found = map(_content, self._cells)
        if not all(map(operator.is_, found, self._contents)):
            return self._owners[_first_other(map(_content, self._cells), self._contents)]
        return None

    def _add(self, name: str, value: Any) -> None:
        """Watch one value, and what is reached from it alone."""
        todo = [(name, value)]
        while todo:
            name, value = todo.pop()
            if id(value) in self._seen:
                continue
            self._seen.add(id(value))
            kind = type(value)
            if kind is types.FunctionType:
                name = f"{value.__module__}.{value.__qualname__}"
                self._functions[id(value)] = (name, value)
                todo += [(name, item) for item in self._closure(name, value)]
                if hasattr(value, "__wrapped__"):
                    todo.append((name, value.__wrapped__))
            elif issubclass(kind, _DESCRIPTORS):
                todo += [(name, item) for item in _described(value)]
            elif issubclass(kind, types.ModuleType):
                if _watched(name := str(vars(value).get("__name__"))):
                    todo += self._add_namespace(name, vars(value), strict=False, shadows=True)
            elif issubclass(kind, type):
                module = str(vars(value).get("__module__"))
                if _watched(module):
                    name = f"{module}.{value.__qualname__}"
                    self._classes.append(value)
                    todo += self._add_namespace(name, vars(value), strict=True)
            elif _top(name) in _STRICT and issubclass(type(vars_of := _dict(value)), dict):
                todo += self._add_namespace(name, vars_of, strict=False)

    def _add_namespace(
        self, name: str, mapping: Mapping[str, Any], *, strict: bool, shadows: bool = False
    ) -> list[tuple[str, Any]]:
        self._namespaces.append(_Namespace(name, mapping, strict=strict, shadows=shadows))
        return [(f"{name}.{key}", value) for key, value in mapping.items() if _is_code(value)]

    def _closure(self, name: str, function: types.FunctionType) -> Iterator[Any]:
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # still empty
                continue
            if _is_code(content):
                self._cells.append(cell)
                self._owners.append(name)
                yield content


_content: Callable[[types.CellType], Any] = operator.attrgetter("cell_contents")
_bases: Callable[[type], Any] = operator.attrgetter("__bases__")


class _Namespace:
    """What a mapping of names holds.

    With `strict` a new name that runs is a change, with `shadows` (a module's names) one that hides
    a builtin.
    """

    __slots__ = ("_keys", "_mapping", "_shadows", "_size", "_strict", "_values", "name")

    def __init__(
        self, name: str, mapping: Mapping[str, Any], *, strict: bool, shadows: bool
    ) -> None:
        self.name = name
        self._shadows = shadows
        self._mapping = mapping
        self._strict = strict
        constants = _top(name) in _STRICT
        kept = {
            key: value
            for key, value in list(mapping.items())
            if _is_code(value) or (constants and key.isupper() and type(value) in _CONSTANTS)
        }
        self._keys, self._values = list(kept), list(kept.values())
        self._size = len(mapping)

    def changed(self) -> str | None:
        found = map(self._mapping.get, self._keys)
        if not all(map(operator.is_, found, self._values)):
            found = map(self._mapping.get, self._keys)
            return f"{self.name}.{self._keys[_first_other(found, self._values)]}"
        if len(self._mapping) != self._size:
            for key in self._mapping.keys() - self._keys:
                value = self._mapping[key]
                if sys.modules.get(f"{self.name}.{key}") is value:
                    continue  # a part that has been imported since
                hides = self._shadows and hasattr(builtins, key)
                if _is_code(value) and (self._strict or hides):
                    return f"{self.name}.{key}"
        return None


def _first_other(found: Any, expected: list[Any]) -> int:
    pairs = zip(found, expected, strict=True)
    return next(index for index, (a, b) in enumerate(pairs) if a is not b)


def _is_code(value: Any) -> bool:
    # By the type: some objects answer isinstance with a warning or with work.
    kind = type(value)
    return callable(value) or issubclass(kind, (types.ModuleType, *_DESCRIPTORS))


def _described(value: Any) -> list[Any]:
    names = ("fget", "fset", "fdel", "__func__", "func")
    return [item for name in names if callable(item := getattr(value, name, None))]


def _dict(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _watched(module: str) -> bool:
    first, _, rest = module.partition(".")
    return first in _WATCHED and (first != "torch" or not rest or _top(rest) in _OF_TORCH)


def _top(name: str) -> str:
    return name.partition(".")[0]


def process_settings() -> dict[str, Any]:
    """Settings of this process that change how fast Python, torch or the machine runs it."""
    import torch
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    found: dict[str, Any] = {
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": threading.gettrace(),
        "sys.setswitchinterval": sys.getswitchinterval(),
        **collector_settings(),
        "os.sched_setaffinity": os.sched_getaffinity(0),
        "os.nice": os.getpriority(os.PRIO_PROCESS, 0),
        "os.sched_setscheduler": os.sched_getscheduler(0),
        "signal.setitimer": [
            signal.getitimer(kind)[1]
            for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "signal.signal": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "torch.set_num_threads": torch.get_num_threads(),
        "torch.set_num_interop_threads": torch.get_num_interop_threads(),
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.set_default_device": torch.get_default_device(),
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.autograd.set_detect_anomaly": torch.is_anomaly_enabled(),
        "a torch function mode": len(_get_current_function_mode_stack()),  # type: ignore[no-untyped-call]
        "a torch dispatch mode": len(_get_current_dispatch_mode_stack()),
        "CUDA_LAUNCH_BLOCKING": os.environ.get("CUDA_LAUNCH_BLOCKING"),
    }
    if hasattr(sys, "monitoring"):
        found["sys.monitoring"] = [sys.monitoring.get_tool(tool) for tool in range(6)]
    return found


class Integrity:
    """Whether code and settings are what they were at the start."""

    def __init__(self) -> None:
        self._code = Code(sys.modules)
        self._settings = process_settings()
        self._objects = Code({})

    def watch(self, **objects: Any) -> None:
        """Watch the code in the attributes of these objects as well."""
        self._objects = Code({}, **objects)

    def require(self, name: str) -> None:
        """Candidate `name` has changed nothing that both arms or the clock run.

        Raises:
            UsageError: naming what it has.
        """
        changed = self._code.changed() or self._objects.changed()
        if changed is not None:
            raise UsageError(
                f"--candidate {name} changes {changed}, which the baseline, the proof or the "
                "clock runs too",
                "change nothing but the candidate's runner, or change a worktree and use --against",
            )
        now = process_settings()
        for setting, value in self._settings.items():
            if now[setting] != value:
                raise UsageError(
                    f"--candidate {name} changes a setting of the process that the baseline "
                    f"has, too: {setting}",
                    "leave the process as it is, or change a worktree and use --against",
                )

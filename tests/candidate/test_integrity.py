"""What is seen of code that has been changed; `tests/candidate/tricks` does it to vLLM itself."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench_prep.candidate.integrity import Code, Integrity
from bench_prep.errors import UsageError

NAME = "bench_prep._changed"


def plain(value: int = 1, *, more: int = 2) -> int:
    return value + more


def other(value: int = 1, *, more: int = 2) -> int:
    return value - more


def wrapping(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def wrapper() -> int:
        return function()

    return wrapper


@pytest.fixture
def module() -> Iterator[Any]:
    """A module among bench-prep's with one of everything."""
    made: Any = types.ModuleType(NAME)

    class Base:
        def inherited(self) -> int:
            return 1

    class Class(Base):
        @property
        def read(self) -> int:
            return 1

        @staticmethod
        def static() -> int:
            return 1

    for cls in (Base, Class):
        cls.__module__ = NAME
    copy = types.FunctionType(
        plain.__code__, globals(), "plain", plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = {"more": 2}
    copy.__module__ = NAME
    made.plain, made.Base, made.Class = copy, Base, Class
    made.wrapped = wrapping(copy)
    made.partial = functools.partial(copy, 3)
    made.LIMIT, made.counter, made.numpy = 7, 0, sys
    made.missing = None
    sys.modules[NAME] = made
    yield made
    del sys.modules[NAME]


def set_cell(module: Any) -> None:
    module.wrapped.__closure__[0].cell_contents = other


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "function": (lambda m: setattr(m, "plain", other), "plain"),
    "deleted": (lambda m: delattr(m, "plain"), "plain"),
    "code": (lambda m: setattr(m.plain, "__code__", other.__code__), "plain"),
    "defaults": (lambda m: setattr(m.plain, "__defaults__", (9,)), "plain"),
    "keyword defaults": (lambda m: setattr(m.plain, "__kwdefaults__", {"more": 9}), "plain"),
    "closure": (set_cell, "plain"),
    "module in it": (lambda m: setattr(m, "numpy", types), "numpy"),
    "constant": (lambda m: setattr(m, "LIMIT", 8), "LIMIT"),
    "builtin": (lambda m: setattr(m, "len", other), "len"),
    "property": (lambda m: setattr(m.Class, "read", property(other)), "Class.read"),
    "static method": (lambda m: setattr(m.Class, "static", staticmethod(other)), "Class.static"),
    "new method": (lambda m: setattr(m.Class, "inherited", other), "Class.inherited"),
    "bases": (lambda m: setattr(m.Class, "__bases__", (type("B", (), {}),)), "Class"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named(module: Any, change: str) -> None:
    code = Code({NAME: module})
    assert code.changed() is None
    apply, name = CHANGES[change]
    apply(module)
    changed = code.changed()
    assert changed is not None
    assert changed.endswith(name)


def test_what_is_no_code_may_change(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = Code({NAME: module})
    module.counter += 1
    module.missing = 3
    module.helper = other
    module.Class.seen = 3
    part = types.ModuleType(f"{NAME}.hash")  # imported late, and named like a builtin
    monkeypatch.setitem(sys.modules, f"{NAME}.hash", part)
    module.hash = part
    assert code.changed() is None


def test_the_attributes_of_an_object() -> None:
    class Arm:
        def call(self) -> None: ...

    arm: Any = Arm()
    arm.prepare, arm.steps = plain, 0
    code = Code({}, arm=arm)
    arm.steps = 1
    assert code.changed() is None
    arm.call = other
    assert code.changed() == "arm.call"
    del arm.call
    arm.prepare = other
    assert code.changed() == "arm.prepare"


def test_what_an_object_of_another_library_becomes_is_no_change(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton gives a kernel its `compile` at its first launch; a module's hides the builtin."""
    kernel = types.SimpleNamespace(fn=plain)
    module.kernel = kernel
    code = Code({NAME: module})
    kernel.compile = other
    assert code.changed() is None
    module.compile = other
    assert code.changed() == f"{NAME}.compile"


def test_a_setting_of_the_process() -> None:
    integrity = Integrity()
    integrity.require("mine:attach")
    before = sys.getswitchinterval()
    sys.setswitchinterval(before * 2)
    try:
        with pytest.raises(UsageError, match=r"mine:attach changes a setting .*switchinterval"):
            integrity.require("mine:attach")
    finally:
        sys.setswitchinterval(before)
    integrity.require("mine:attach")

"""Whatever a method that the fast path relies on resolves to is vLLM's own, or the gate closes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import wrapt

from bench_prep.fastpath.gates import closed_service_gate
from tests.fastpath.removal import SETTINGS

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def made() -> Any:
    from bench_prep.decode.runner import make_runners

    return make_runners(SETTINGS, 1)[0]


@pytest.fixture
def runner(made: Any) -> Any:
    assert closed_service_gate(made) is None
    yield made
    assert closed_service_gate(made) is None


class Descriptor:
    """Any object that has `__get__`; it lends its target's names, as proxies do."""

    def __init__(self, own: Any) -> None:
        self.own = own
        functools.update_wrapper(self, own)
        self.__code__ = own.__code__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self.own, instance)


class Proxy(wrapt.ObjectProxy):  # type: ignore[misc]
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self.__wrapped__, instance)


def plain(own: Any) -> Any:
    return lambda *args, **kwargs: own(*args, **kwargs)


def lent_text(own: Any) -> Any:
    """A function that claims the file and the lines of vLLM's."""
    code = plain(own).__code__.replace(
        co_filename=own.__code__.co_filename,
        co_firstlineno=own.__code__.co_firstlineno,
        co_name=own.__code__.co_name,
        co_qualname=own.__code__.co_qualname,
    )
    return types.FunctionType(code, own.__globals__, own.__name__, None, (types.CellType(own),))


def other_globals(own: Any) -> Any:
    return types.FunctionType(own.__code__, dict(own.__globals__), own.__name__)


def other_default(own: Any) -> Any:
    copy = types.FunctionType(own.__code__, own.__globals__, own.__name__, (0,))
    return copy


REPLACEMENTS: dict[str, Callable[[Any], Any]] = {
    "plain": plain,
    "wraps": lambda own: functools.wraps(own)(plain(own)),
    "wrapt": lambda own: wrapt.FunctionWrapper(own, lambda f, i, a, k: f(*a, **k)),
    "proxy": Proxy,
    "partialmethod": functools.partialmethod,
    "partial": functools.partial,
    "descriptor": Descriptor,
    "staticmethod": staticmethod,
    "classmethod": lambda own: classmethod(plain(own)),
    "property": lambda own: property(lambda self: functools.partial(own, self)),
    "cached_property": functools.cached_property,
    "contextmanager": lambda own: contextlib.contextmanager(own),
    "text": lent_text,
    "globals": other_globals,
    "default": other_default,
}


def places() -> list[tuple[type, str]]:
    from vllm.v1.utils import CpuGpuBuffer
    from vllm.v1.worker.block_table import BlockTable, MultiGroupBlockTable
    from vllm.v1.worker.gpu_input_batch import InputBatch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return [
        (GPUModelRunner, "_prepare_inputs"),
        (GPUModelRunner, "_bookkeeping_sync"),
        (BlockTable, "compute_slot_mapping"),
        (MultiGroupBlockTable, "commit_block_table"),
        (InputBatch, "condense"),
        (CpuGpuBuffer, "copy_to_gpu"),
    ]


def closed_by(runner: Any, name: str) -> str:
    from bench_prep.fastpath import fingerprint

    fingerprint.look_again()
    reason = closed_service_gate(runner)
    fingerprint.look_again()
    assert reason is not None
    assert name in reason, reason
    return reason


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_a_method_replaced_on_its_class_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for owner, name in places():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, REPLACEMENTS[kind](vars(owner)[name]))
            assert closed_by(runner, "").startswith("unknown runner source:"), (owner, name)


def test_what_is_replaced_is_named(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.block_table import BlockTable

    own = BlockTable.compute_slot_mapping
    monkeypatch.setattr(BlockTable, "compute_slot_mapping", Proxy(own))
    assert closed_by(runner, "BlockTable.compute_slot_mapping is not vLLM's own")
    monkeypatch.undo()


@pytest.mark.parametrize("part", ["__code__", "__defaults__", "__kwdefaults__"])
def test_a_part_of_a_function_that_is_exchanged_closes_the_gate(runner: Any, part: str) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    for own in (vars(owner)[name] for owner, name in places()):
        if own is vars(GPUModelRunner)["_bookkeeping_sync"] and own.__closure__:
            continue
        before = getattr(own, part)
        new = {"__code__": lambda code: code.replace(co_name="mine")}.get(part)
        code = (lambda *args, **kwargs: None).__code__
        setattr(own, part, code if new else (1,) if part == "__defaults__" else {"num_reqs": 1})
        try:
            closed_by(runner, "")
        finally:
            setattr(own, part, before)


def test_a_wrapper_that_lends_another_function_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trusted decorator's around something else, said to be around vLLM's."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    own = vars(GPUModelRunner)["synchronize_input_prep"]
    mine = contextlib.contextmanager(plain(own.__wrapped__))
    mine.__wrapped__ = own.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(GPUModelRunner, "synchronize_input_prep", mine)
    closed_by(runner, "synchronize_input_prep")
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("vllm.v1.worker.gpu_model_runner", "cdiv", plain(max)),
        ("vllm.v1.worker.gpu_model_runner", "np", types.SimpleNamespace()),
        ("vllm.v1.worker.gpu_model_runner", "len", plain(len)),
        ("vllm.v1.worker.gpu_model_runner", "CachedRequestState", object),
        ("vllm.v1.worker.block_table", "CpuGpuBuffer", object),
        ("vllm.v1.worker.block_table", "_COMPUTE_SLOT_MAPPING_KERNEL", plain(print)),
        ("vllm.v1.worker.block_table", "get_dcp_group", functools.partial(print)),
    ],
)
def test_a_name_of_the_module_that_a_method_uses_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: Any
) -> None:
    if name.startswith("_COMPUTE") and not hasattr(importlib.import_module(module), name):
        pytest.skip("this vLLM has no such name")
    monkeypatch.setattr(f"{module}.{name}", value, raising=False)
    closed_by(runner, name)
    monkeypatch.undo()


def test_a_function_replaced_where_it_is_imported_from_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was patched before the runner's module was imported."""
    from vllm.v1.worker import gpu_model_runner

    mine = plain(gpu_model_runner.cdiv)
    monkeypatch.setattr("vllm.utils.math_utils.cdiv", mine)
    monkeypatch.setattr(gpu_model_runner, "cdiv", mine)
    closed_by(runner, "cdiv")
    monkeypatch.undo()


def test_every_method_of_the_fingerprint_replaced_on_the_runner_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench_prep.fastpath.fingerprint import RUNNER_METHODS

    for name in RUNNER_METHODS:
        if hasattr(runner, name):
            with monkeypatch.context() as patch:
                patch.setitem(vars(runner), name, getattr(runner, name))
                assert closed_by(runner, name).startswith("replaced method:")


def test_a_method_replaced_on_a_part_of_the_runner_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = runner.input_batch
    tables = batch.block_table
    for owner, name in (
        (batch, "condense"),
        (tables, "commit_block_table"),
        (tables[0], "compute_slot_mapping"),
        (tables[0], "append_row"),
        (tables[0].slot_mapping, "copy_to_gpu"),
        (runner.input_ids, "copy_to_gpu"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(vars(owner), name, getattr(owner, name))
            assert closed_by(runner, name).startswith("replaced method:")


@pytest.mark.parametrize("hook", ["__getattr__", "__getattribute__"])
def test_a_hook_of_a_subclass_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    def answer(self: Any, name: str) -> Any:
        return object.__getattribute__(self, name)

    for one in (runner, runner.input_batch, runner.input_batch.block_table):
        kind = type("Mine", (type(one),), {hook: answer})
        with monkeypatch.context() as patch:
            patch.setattr(one, "__class__", kind)
            closed_by(runner, "")


def test_a_batch_of_another_class_closes_the_gate(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = runner.input_batch
    monkeypatch.setattr(batch, "__class__", type("Mine", (type(batch),), {}))
    closed_by(runner, "Mine")
    monkeypatch.undo()
    monkeypatch.setattr(runner, "input_batch", wrapt.ObjectProxy(batch))
    closed_by(runner, "")
    monkeypatch.undo()


def test_what_vllm_itself_puts_into_another_module_is_its_own() -> None:
    """The worker of the CPU platform replaces a function of `torch_utils`, as its text says."""
    code = """
import importlib
try:
    shm = importlib.import_module("vllm.v1.worker.cpu.shm")
except ModuleNotFoundError:
    raise SystemExit  # an older vLLM
from vllm.utils import torch_utils
from bench_prep.fastpath.own_functions import replaced_function

assert torch_utils.async_tensor_h2d is shm.async_tensor_h2d
assert replaced_function("vllm.utils.torch_utils", "async_tensor_h2d") is None
shm.async_tensor_h2d.__code__ = (lambda *given, **more: None).__code__
assert replaced_function("vllm.utils.torch_utils", "async_tensor_h2d") is not None
"""
    subprocess.run([sys.executable, "-c", code], check=True)

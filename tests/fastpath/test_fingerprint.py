"""The fingerprint of vLLM's sources: edited, wrapped and replaced methods are other sources."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench_prep.fastpath import fingerprint as module
from bench_prep.fastpath.fingerprint import (
    KNOWN_FILE,
    RUNNER_METHODS,
    SOURCES,
    admit,
    combined,
    fingerprint,
    known,
    known_source,
    part_hashes,
    short_hashes,
    what_differs,
)


def _runner_class() -> tuple[Any, str]:
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        return CPUModelRunner, "cpu"
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return GPUModelRunner, "cuda"


@pytest.fixture
def fresh() -> Iterator[None]:
    """Sources are read anew in the test and after it."""
    module._texts.cache_clear()
    yield
    module._texts.cache_clear()
    known.cache_clear()


def test_each_proven_source_has_the_hash_of_each_part() -> None:
    for source in known()["sources"].values():
        assert set(SOURCES) <= set(source["parts"])
        assert all(len(digest) == 16 for digest in source["parts"].values())


def test_the_fingerprint_is_of_names_and_texts() -> None:
    assert combined({"a": "x"}) != combined({"b": "x"}) != combined({"b": "y"})
    assert short_hashes({"a": "x"})["a"] == "2d711642b726b044"


@pytest.mark.vllm
def test_the_installed_source_is_known_part_by_part(fresh: None) -> None:
    cls, platform = _runner_class()
    source = known_source(cls, platform)
    assert source is not None
    assert source.parts == part_hashes(cls, platform)
    assert what_differs(part_hashes(cls, platform), platform) == ""


@pytest.mark.vllm
def test_vllm_s_own_decorators_are_part_of_the_source(fresh: None) -> None:
    cls, _ = _runner_class()
    assert hasattr(cls.synchronize_input_prep, "__wrapped__")
    text = module._source(cls.synchronize_input_prep)
    assert text.lstrip().startswith("@contextmanager")


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["_prepare_inputs", "_update_states", "synchronize_input_prep"])
def test_a_wrapper_around_a_method_is_seen(
    fresh: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls, platform = _runner_class()
    own = getattr(cls, name)

    @functools.wraps(own)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    monkeypatch.setattr(cls, name, wrapper)
    assert inspect.getsource(inspect.unwrap(wrapper)) == inspect.getsource(inspect.unwrap(own))
    assert known_source(cls, platform) is None
    assert name in what_differs(part_hashes(cls, platform), platform)


@pytest.mark.vllm
def test_a_wrapper_made_by_a_trusted_decorator_is_seen(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls, platform = _runner_class()
    monkeypatch.setattr(cls, "_update_states", contextlib.contextmanager(cls._update_states))
    assert known_source(cls, platform) is None


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["compute_slot_mapping", "commit_block_table"])
def test_a_wrapper_around_a_method_of_a_class_is_seen(
    fresh: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.worker.block_table import BlockTable

    cls, platform = _runner_class()
    own = getattr(BlockTable, name)
    monkeypatch.setattr(BlockTable, name, functools.wraps(own)(lambda *args: own(*args)))
    module.look_again()
    assert known_source(cls, platform) is None


@pytest.mark.vllm
def test_a_method_replaced_in_a_class_is_seen(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.block_table import BlockTable
    from vllm.v1.worker.gpu_input_batch import InputBatch

    cls, platform = _runner_class()
    for owner, name in ((BlockTable, "append_row"), (InputBatch, "condense")):
        own = getattr(owner, name)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *args, own=own: own(*args))
            module._texts.cache_clear()
            assert known_source(cls, platform) is None
    module._texts.cache_clear()
    assert known_source(cls, platform) is not None


@pytest.mark.vllm
def test_a_method_of_vllm_from_elsewhere_is_seen(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of the class's own module, behind the class, whose text is the known one."""
    from vllm.v1 import utils
    from vllm.v1.worker import gpu_input_batch
    from vllm.v1.worker.gpu_input_batch import InputBatch

    cls, platform = _runner_class()
    assert known_source(cls, platform) is not None
    behind = next(
        value
        for value in vars(gpu_input_batch.CachedRequestState).values()
        if inspect.isfunction(value) and value.__code__.co_filename == gpu_input_batch.__file__
    )
    for owner, name, other in (
        (InputBatch, "condense", behind),
        (InputBatch, "condense", utils.copy_slice),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            module.look_again()
            assert known_source(cls, platform) is None, (owner, other)
    module.look_again()
    assert known_source(cls, platform) is not None


def test_a_class_that_is_defined_again_is_seen(tmp_path: Path, monkeypatch: Any) -> None:
    text = "class Own:\n    def method(self) -> None: ...\n"
    monkeypatch.syspath_prepend(tmp_path)
    for name, more, expected in (
        ("once", "", text),
        ("twice", "\n_Own = Own\nclass Own(_Own):\n    pass\n", "defined 2 times"),
        ("patched", "\ndef other(self) -> None: ...\nOwn.method = other\n", "replaced: ['method']"),
    ):
        (tmp_path / f"fingerprint_{name}.py").write_text(text + more)
        own = importlib.import_module(f"fingerprint_{name}").Own
        assert module._class_source(own) == expected


@pytest.mark.vllm
def test_an_edited_method_is_named(fresh: None) -> None:
    cls, platform = _runner_class()

    class Edited(cls):  # type: ignore[misc, valid-type]
        def _prepare_inputs(self, *arguments: Any) -> Any:
            return super()._prepare_inputs(*arguments)

    assert known_source(Edited, platform) is None
    said = what_differs(part_hashes(Edited, platform), platform)
    assert re.fullmatch(r"_prepare_inputs is not vLLM \S+'s", said)
    digest, source = admit(Edited, platform, "0.0.0", 3)
    assert known_source(Edited, platform) == source
    assert digest == fingerprint(Edited, platform)
    assert digest not in KNOWN_FILE.read_text(encoding="utf-8")


@pytest.mark.vllm
def test_the_texts_are_inspect_s(fresh: None) -> None:
    cls, platform = _runner_class()
    texts = module._texts(cls, platform)
    assert len(texts) > 20
    for name, text in texts.items():
        value = getattr(cls, name) if name in RUNNER_METHODS else module._resolve(name)
        assert text == inspect.getsource(inspect.unwrap(value)), name


def test_a_block_ends_where_the_next_statement_begins() -> None:
    text = '''\
    @decorated(
        1
    )
    def method(
        self,
    ) -> None:
        """Text.

        """
        if True:
            pass
        # the last comment

    # of the next one
    def other(self) -> None:
        pass
'''
    lines = text.splitlines(keepends=True)
    assert module.block_text(lines, 0) == "".join(lines[:12]) == "".join(inspect.getblock(lines))

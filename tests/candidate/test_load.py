"""The candidate's protocol, without vLLM."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_prep.candidate.load import (
    DispatchedShare,
    attach,
    load_factory,
    own_errors,
    require_dispatched,
)
from bench_prep.decode.steps import Decoder
from bench_prep.errors import Missing, OutputsDiffer, UsageError
from bench_prep.settings import OUR_CANDIDATE, RunSettings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder}/mine.py:attach"


def test_a_file_is_found_from_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    settings = RunSettings(candidate="examples/same_path.py:attach")
    monkeypatch.chdir("/")
    assert settings.candidate_file == Path("examples/same_path.py")
    monkeypatch.chdir(EXAMPLES.parent)
    absolute = settings.for_another_folder()
    assert absolute.candidate == f"{EXAMPLES}/same_path.py:attach"
    assert absolute.model_copy(update={"candidate": settings.candidate}) == settings
    runner = SimpleNamespace(_prepare_inputs=print)
    assert attach("same", load_factory(absolute.candidate), runner) is print


def test_a_module_is_named_alike_everywhere() -> None:
    settings = RunSettings(candidate="os.path:join")
    assert settings.candidate_file is None
    assert settings.for_another_folder() is settings
    assert load_factory("os.path:join").__name__ == "join"


def test_a_file_may_define_dataclasses(tmp_path: Path) -> None:
    name = write(
        tmp_path,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "@dataclass\n"
        "class attach:\n"
        "    runner: object\n"
        "    count: ClassVar[int] = 0\n"
        "    def __call__(self, output, scheduled): return self.runner\n",
    )
    assert attach(name, load_factory(name), 3)(None, None) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def attach(runner:\n", "SyntaxError"),
        ("import a_module_that_nobody_has\n", "ModuleNotFoundError"),
        ("def detach(runner): ...\n", "AttributeError.*attach"),
        ("attach = 3\n", "attach cannot be called"),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=f"mine.py:attach cannot be loaded .*{problem}") as caught:
        load_factory(write(tmp_path, text))
    assert "file.py:attribute" in caught.value.remedy


@pytest.mark.parametrize("name", ["no_such_module:attach", "os:no_such_attribute", "os:sep"])
def test_a_module_that_cannot_be_loaded(name: str) -> None:
    with pytest.raises(UsageError, match=f"--candidate {name} cannot be loaded"):
        load_factory(name)


def test_a_factory_that_raises(tmp_path: Path) -> None:
    name = write(tmp_path, "def attach(runner):\n    return runner.nothing\n")
    with pytest.raises(UsageError, match=r"raised AttributeError: .*\(mine.py, line 2\)"):
        attach(name, load_factory(name), object())


def test_a_factory_that_refuses_keeps_its_own_words() -> None:
    def factory(runner: Any) -> Any:
        raise Missing("not served", "serve it")

    with pytest.raises(Missing, match="not served"):
        attach("any:factory", factory, None)


def test_a_factory_must_return_something_to_call() -> None:
    with pytest.raises(UsageError, match="any:factory returned int, which cannot be called"):
        attach("any:factory", lambda runner: 3, None)


def calling(prepare: Any) -> Decoder:
    """A decoder that calls this, and has no runner."""
    decoder = Decoder.__new__(Decoder)
    vars(decoder).update(prepare=lambda *_: prepare(), _output=None, _num_scheduled=None)
    return decoder


def fails() -> None:
    raise ValueError("so wrong")


def test_only_what_the_candidate_raises_is_the_candidates() -> None:
    decoder, other = calling(fails), calling(fails)
    with (
        pytest.raises(UsageError, match=r"mine:attach raised ValueError: so wrong \(test_load"),
        own_errors("mine:attach", decoder),
    ):
        decoder.call()
    for name, raises in (
        ("mine:attach", other.call),  # the baseline
        ("mine:attach", fails),  # the harness
        (OUR_CANDIDATE, decoder.call),  # ours
    ):
        with pytest.raises(ValueError, match="so wrong"), own_errors(name, decoder):
            raises()
    with pytest.raises(OutputsDiffer), own_errors("mine:attach", decoder):
        raise OutputsDiffer("here")


def test_a_candidate_that_prepared_nothing_is_refused() -> None:
    fallbacks = Counter({"rare": 1, "several requests": 7})
    with pytest.raises(Missing, match="main reason: several requests"):
        require_dispatched(SimpleNamespace(dispatched=0, fallbacks=fallbacks))
    with pytest.raises(Missing, match="main reason: none given"):
        require_dispatched(SimpleNamespace(dispatched=0))
    require_dispatched(SimpleNamespace(dispatched=1))
    require_dispatched(print)


def test_the_share_counts_marked_steps_only() -> None:
    candidate = SimpleNamespace(dispatched=5)
    share = DispatchedShare(candidate)
    assert share.percent() is None
    share.mark()
    candidate.dispatched += 9
    share.add(10)
    assert share.percent() == 90
    candidate.dispatched += 100  # between the blocks
    share.mark()
    candidate.dispatched += 10
    share.add(10)
    assert share.percent() == 95


def test_a_candidate_that_does_not_count_has_no_share() -> None:
    share = DispatchedShare(print)
    share.mark()
    share.add(10)
    assert share.percent() is None

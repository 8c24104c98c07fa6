"""What is said of a candidate before anything takes long, without running it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench_prep.candidate.findable import require_findable
from bench_prep.errors import UsageError
from bench_prep.settings import OUR_CANDIDATE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path whose import would fail."""
    folder = tmp_path / "raising_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "mine.py").write_text("raise RuntimeError('imported')\ndef attach(runner): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        OUR_CANDIDATE,
        f"{EXAMPLES}/same_path.py:attach",
        "os.path:join",
        "math:sqrt",
        "vllm.not_built_yet:attach",
    ],
)
def test_what_is_there_is_found(name: str) -> None:
    require_findable(name)


def test_a_module_is_not_imported(package: Path) -> None:
    require_findable("raising_package.mine:attach")
    with pytest.raises(UsageError, match=r"raising_package\.mine has no atach"):
        require_findable("raising_package.mine:atach")
    with pytest.raises(UsageError, match=r"No module named 'raising_package\.other'"):
        require_findable("raising_package.other:attach")
    assert "raising_package" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "attach = print",
        "from os import path as attach",
        "import attach.inner",
        "class attach: ...",
        "if True:\n    async def attach(): ...",
        "try:\n    pass\nexcept ValueError as error:\n    pass\nelse:\n    attach, other = 1, 2",
        "def make():\n    global attach\n    attach = print\nmake()",
        "(attach := print)",
        "from os.path import *",
        "def __getattr__(name): return print",
        "globals()['att' + 'ach'] = print",
        "import sys\nsetattr(sys.modules[__name__], 'attach', print)",
    ],
)
def test_what_a_module_may_bind_is_not_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    require_findable(f"{tmp_path}/mine.py:attach")


@pytest.mark.parametrize(
    ("text", "says", "remedy"),
    [
        ("def atach(runner): ...", r"mine.py has no attach", "its functions: atach"),
        ("def make():\n    attach = print", "has no attach", "its functions: make"),
        ("class One:\n    attach = print", "has no attach", "the name of a function"),
        ("def attach(:", "cannot be loaded .SyntaxError", "file.py:attribute"),
        ("\0", "cannot be loaded", "file.py:attribute"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, text: str, says: str, remedy: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError, match=says) as raised:
        require_findable(f"{tmp_path}/mine.py:attach")
    assert remedy in raised.value.remedy
    with pytest.raises(UsageError, match="there is no file"):
        require_findable(f"{tmp_path}/no.py:attach")

"""What the documents say exists: pages, files, commands and options; the README stays short."""

from __future__ import annotations

import io
import re
import shlex
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bench_prep.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("bench_prep", "benchmarks", "docs", "examples", "results", "scripts", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
)
SOURCES = sorted(
    path
    for name in FOLDERS
    for pattern in ("*.py", "*.sh", "*.toml")
    for path in (ROOT / name).rglob(pattern)
)
README_LINES, README_LENGTH = 130, 100
#: A page by its name, such as `docs/results.md`.
_PAGE = re.compile(r"[\w./-]*\w\.md\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `bench-prep ...` on a page, in blocks of code and within lines."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        code = [line] if line.startswith("    ") else re.findall(r"`([^`]+)`", line)
        for one in code:
            if found := re.match(r"\s*(?:\$ )?bench-prep( [^#]*)", one):
                yield re.split(r"\s{3,}| \| ", found[1].strip())[0].split()


def wrong_in(words: list[str]) -> str:
    """What of a command line is no command or option of bench-prep; "" if nothing is."""
    command: Any = get_command(app)
    while words and hasattr(command, "commands"):
        name, *words = words
        if name.startswith("-"):
            break
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    for word in words:
        option = word.strip("[]().,;").partition("=")[0]
        if option.startswith("--") and option not in {*options, "--help"}:
            return f"{command.name} has no {option}"
    return ""


def test_readme_is_for_one_minute() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES
    assert [line for line in lines if len(line) > README_LENGTH] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands(page: Path) -> None:
    assert {
        shlex.join(words): wrong for words in commands(page) if (wrong := wrong_in(words))
    } == {}


def test_commands_are_found() -> None:
    """The test before this one sees the commands."""
    assert ["run", "--candidate", "examples/same_path.py:attach"] in commands(ROOT / "README.md")
    assert wrong_in(["prove", "nothing"]) and wrong_in(["run", "--nothing"])
    assert not wrong_in(["prove", "source", "--steps", "10"])


def prose(source: Path) -> str:
    """All of a file; of a test the comments and docstrings, for its data may name anything."""
    text = source.read_text(encoding="utf-8")
    if source.suffix != ".py" or "tests" not in source.relative_to(ROOT).parts:
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.string.startswith(("#", '"""')))


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_cited_pages_exist(source: Path) -> None:
    for page in _PAGE.findall(prose(source)):
        assert any((place / page).exists() for place in (ROOT, ROOT / "docs")), page
    assert not re.search(r"\bDESIGN(?:[ :.]|$)", prose(source))

"""Dependencies point one way, and files stay readable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "bench_prep"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 400
#: What lies in no folder; each of these imports only those before it.
GROUND = ("__init__", "errors", "stages", "snapshot", "files", "settings", "__main__")

#: Folder -> what of ours it may import besides itself.
DIRECTIONS = {
    "calibrate": "child errors files measure results settings stages",
    "candidate": "child decode errors fastpath measure settings snapshot",
    "child": "errors",
    "cli": "calibrate engine errors plugin_log prove provenance report run serve "
    "settings stages steps sweep",
    "decode": "child errors fastpath measure provenance settings snapshot",
    "engine": "child decode errors fastpath measure provenance report results settings stages",
    "fastpath": "errors snapshot",
    "measure": "settings",
    "plugin_log": "errors fastpath stages",
    "prove": "child decode engine errors fastpath files provenance settings snapshot stages",
    "provenance": "child errors results stages",
    "report": "errors measure results",
    "results": "errors files measure settings",
    "run": "candidate child decode errors files measure provenance report results "
    "settings snapshot stages",
    "serve": "child decode engine errors measure plugin_log provenance report results "
    "settings stages",
    "steps": "child engine errors fastpath measure results stages",
    "sweep": "candidate child decode errors files measure provenance results settings stages",
}
#: Folders that must do without what takes seconds to import, or what they are proved against.
WITHOUT = {
    "calibrate": "vllm",
    "child": "vllm torch",
    "cli": "vllm torch",
    "measure": "vllm",
    "plugin_log": "vllm torch",
    "provenance": "vllm torch",
    "report": "vllm torch",
    "results": "vllm torch",
}


def name_of(path: Path) -> str:
    """The module of a file of ours, such as `bench_prep.decode.steps`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "import_module"
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value


def part(module: str) -> str | None:
    """The part of ours that a module belongs to, such as `decode`; None for others' modules."""
    package, _, rest = module.partition(".")
    if package != "bench_prep":
        return None
    name = rest.partition(".")[0]
    is_part = (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()
    return name if is_part else ""  # `bench_prep` itself holds the version and nothing else


@pytest.mark.parametrize("folder", DIRECTIONS)
def test_directions(folder: str) -> None:
    ours, forbidden = DIRECTIONS[folder].split(), WITHOUT.get(folder, "").split()
    files = [path for path in FILES if path.relative_to(PACKAGE).parts[0] == folder]
    assert files
    for path in files:
        for module in imports(path):
            found = part(module)
            if found is not None:
                assert found in {"", folder, *ours}, f"{name_of(path)} imports {module}"
            assert module.split(".")[0] not in forbidden, f"{name_of(path)} imports {module}"


def test_every_folder_has_a_direction() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == set(DIRECTIONS)


def test_only_the_start_imports_the_command_line() -> None:
    users = {name_of(path) for path in FILES if "cli" in map(part, imports(path))}
    assert {user for user in users if not user.startswith("bench_prep.cli")} == {
        "bench_prep.__main__"
    }


def test_the_command_line_waits_for_nothing_heavy() -> None:
    """What `cli` imports before a command is chosen."""
    first = [
        node
        for path in (PACKAGE / "cli").glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    names = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in first
    }
    ours = {part(name) for name in names if name}
    assert ours <= {None, "", "cli", "errors"}


def test_nothing_but_the_ground_lies_loose() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(GROUND)
    for number, name in enumerate(GROUND[:-1]):
        found = {part(module) for module in imports(PACKAGE / f"{name}.py")} - {None, ""}
        assert found <= set(GROUND[:number]), f"{name} imports {found}"


def test_no_folder_reaches_itself_through_another() -> None:
    TopologicalSorter({name: ours.split() for name, ours in DIRECTIONS.items()}).prepare()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES

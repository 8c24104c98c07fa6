"""Dependencies point one way, and files stay readable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "bench_prep"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 450

#: Folder -> what of ours it may import besides itself, and what of the others it must not.
DIRECTIONS: dict[str, tuple[set[str], set[str]]] = {
    "provenance": ({"errors"}, {"vllm", "torch"}),
    "fastpath": ({"errors", "log_lines", "snapshot"}, set()),
    "measure": ({"errors"}, {"vllm"}),
    "calibrate": ({"errors", "files", "measure", "report", "stages", "target"}, {"vllm"}),
    "decode": ({"errors", "settings", "snapshot"}, set()),
    "differential": (
        {
            *{"bringup", "decode", "errors", "fastpath", "files", "provenance", "settings"},
            *{"snapshot", "source", "stages", "target"},
        },
        set(),
    ),
    "engine": (
        {
            *{"bringup", "differential", "errors", "fastpath", "files", "log_lines", "measure"},
            *{"provenance", "report", "settings", "source", "stages", "target"},
        },
        set(),
    ),
    "steps": (
        {
            *{"bringup", "engine", "errors", "fastpath", "log_lines", "measure"},
            *{"provenance", "report", "source", "stages", "target"},
        },
        set(),
    ),
    "sweep": (
        {
            *{"arms", "bringup", "candidate", "candidate_source", "decode", "errors", "files"},
            *{"guard", "measure", "provenance", "report", "settings", "source", "stages"},
            *{"served_source", "target"},
        },
        set(),
    ),
    "report": ({"errors", "files", "measure", "settings"}, {"vllm", "torch"}),
    "service": (
        {
            *{"bringup", "engine", "errors", "measure", "provenance", "report", "serving"},
            *{"settings", "source", "stages", "target"},
        },
        set(),
    ),
    "serving": ({"errors", "log_lines", "stages"}, {"vllm", "torch"}),
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
    ours, forbidden = DIRECTIONS[folder]
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
    assert users == {"bench_prep.__main__"}


def test_the_command_line_waits_for_nothing_heavy() -> None:
    """What `cli` imports before a command is chosen."""
    first = [
        node
        for name in (
            "cli.py",
            "cli_options.py",
            "cli_prove.py",
            "cli_serve.py",
            "cli_steps.py",
            "cli_sweep.py",
        )
        for node in ast.parse((PACKAGE / name).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    names = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in first
    }
    assert {name for name in names if name and part(name) is not None} == {
        "bench_prep",
        "bench_prep.cli_options",
        "bench_prep.cli_prove",
        "bench_prep.cli_serve",
        "bench_prep.cli_steps",
        "bench_prep.cli_sweep",
        "bench_prep.command",
        "bench_prep.errors",
    }


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES

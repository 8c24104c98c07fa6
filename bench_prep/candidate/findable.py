"""What can be said of a candidate without running any of it: it is there, and has its attribute."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from bench_prep.errors import UsageError

#: What can bind a module's names without being seen in its text.
_DYNAMIC = frozenset(
    {"exec", "eval", "globals", "locals", "setattr", "vars", "__dict__", "modules", "__getattr__"}
)
_SHOWN = 5


def require_findable(name: str) -> None:
    """Before anything that takes long: `module:attribute` or `file.py:attribute` can be there.

    A module of vLLM may be one that is still to be built, so nothing is said of it.

    Raises:
        UsageError: there is no such file or module, its text is not Python, or nothing in it binds
            the attribute.
    """
    where, _, attribute = name.rpartition(":")
    if where.partition(".")[0] == "vllm":
        return
    if where.endswith(".py"):
        file = Path(where)
        if not file.is_file():
            raise UsageError(
                f"--candidate {name}: there is no file {where}",
                "give file.py:attribute, or module:attribute of an installed module",
            )
    else:
        spec = _spec(where)
        if spec is None:
            raise cannot_be_loaded(name, ModuleNotFoundError(f"No module named {where!r}"))
        file = Path(str(spec.origin))
        if file.suffix != ".py" or not file.is_file():
            return  # compiled, a package without a file, or inside a zip archive
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise cannot_be_loaded(name, error) from None
    bound = set(_bound(tree))
    if attribute not in bound and "*" not in bound:
        shown = file.name if where.endswith(".py") else where
        there = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        there = [one for one in there if not one.startswith("_")][:_SHOWN]
        raise UsageError(
            f"--candidate {name}: {shown} has no {attribute}",
            f"give one of its functions: {', '.join(there)}"
            if there
            else "give the name of a function in it that takes the runner",
        )


def cannot_be_loaded(name: str, error: Exception) -> UsageError:
    """The error for a candidate that is there and of no use."""
    return UsageError(
        f"--candidate {name} cannot be loaded ({type(error).__name__}: {error})",
        "give file.py:attribute, or module:attribute of an installed module, of a function "
        "that takes the runner",
    )


def _spec(module: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, which would import the packages around a module."""
    if module in sys.modules:
        return sys.modules[module].__spec__
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for index, _ in enumerate(parts, start=1):
            if spec is None or spec.submodule_search_locations is None:
                return None
            inner = ".".join([top, *parts[:index]])
            where = list(spec.submodule_search_locations)
            # All finders: an editable installation may have brought one of its own.
            found = (finder.find_spec(inner, where) for finder in sys.meta_path)
            spec = next(filter(None, found), None)
    except (ImportError, ValueError):
        return None
    return spec


def _bound(tree: ast.Module) -> Iterator[str]:
    """The names that a module's text binds in it; `*` where it can bind others, too."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if inside:
            yield node.name  # type: ignore[attr-defined]
            # What a function binds elsewhere it has to say.
            for part in ast.walk(node):
                if isinstance(part, ast.Global):
                    yield from part.names
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        if not inside:
            todo += ast.iter_child_nodes(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            yield node.target.id  # in a default or a decorator
        names = {getattr(node, name, None) for name in ("id", "attr", "name", "asname")}
        if not _DYNAMIC.isdisjoint(name for name in names if isinstance(name, str)):
            yield "*"

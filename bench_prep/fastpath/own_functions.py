"""Whether what stands in vLLM's classes and modules is what their source text makes.

A hash of a source text says nothing of a proxy, a partial, an exchanged code object or a function
that was imported from elsewhere. So the functions are made once more from that text, with their
decorators, and compared with those that are there: code, defaults, closures and wrappers.
"""

from __future__ import annotations
import __future__

import abc
import ast
import functools
import importlib
import importlib.util
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

#: Modules through which a name of vLLM may have been imported.
_REEXPORTS = 3
_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: What `dataclass` and `class` itself put into a class.
_GENERATED = {"__init__", "__repr__", "__eq__", "__hash__"}
_OF_EVERY_CLASS = {"__dict__", "__weakref__", "__module__", "__doc__", "__slots__"}


@dataclass
class _Source:
    """A module of which each name is bound as its text says."""

    module: types.ModuleType
    text: str
    tree: ast.Module
    flags: int
    defined: dict[str, list[ast.AST]] = field(default_factory=dict)
    imported: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    @functools.cached_property
    def codes(self) -> list[types.CodeType]:
        """Of the whole module: how a call is compiled depends on what its module imports."""
        file = str(self.module.__file__)
        return [*_codes(compile(self.text, file, "exec", dont_inherit=True))]

    @functools.cached_property
    def assigned(self) -> set[str]:
        """Every name that is assigned to somewhere."""
        names = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name))
        return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def replaced_in_class(cls: type, name: str) -> str | None:
    """What a class's method resolves to, in words, if it is not what the class's text makes."""
    owner = next((one for one in cls.__mro__ if name in vars(one)), None)
    if owner is None:
        return None
    shown = f"{owner.__name__}.{name}"
    source = _source(owner.__module__)
    nodes = _members(source, owner).get(name)
    if not nodes:
        return shown
    found = vars(owner)[name]
    if not any(_is_made_by(source, owner, node, found) for node in nodes):
        return shown
    return next(_replaced_globals(source, found), None)


def replaced_of_class(cls: type) -> str | None:
    """The first of a class's own functions that is not what its text makes."""
    source = _source(cls.__module__)
    if type(cls) not in (type, abc.ABCMeta) or source.module.__dict__.get(cls.__name__) is not cls:
        return cls.__name__
    members = _members(source, cls)
    for name in members:
        found = replaced_in_class(cls, name)
        if found is not None:
            return found
    for name, value in vars(cls).items():
        if name in members or name in _OF_EVERY_CLASS or not hasattr(value, "__get__"):
            continue
        if isinstance(value, types.MemberDescriptorType | type):
            continue
        if not (
            name in _GENERATED
            and "__dataclass_fields__" in vars(cls)
            and inspect.unwrap(value).__code__.co_filename.startswith("<")
        ):
            return f"{cls.__name__}.{name}"
    return None


def replaced_function(module_name: str, name: str) -> str | None:
    """A function of a module that is not what the module's text makes."""
    return _replaced_global(_source(module_name), name, deeper=_REEXPORTS)


@functools.cache
def _source(module_name: str) -> _Source:
    module = importlib.import_module(module_name)
    text = "".join(linecache.getlines(str(module.__file__)))
    tree = ast.parse(text)
    futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    names = [alias.name for node in futures for alias in node.names]
    flags = sum(getattr(__future__, name).compiler_flag for name in names)
    source = _Source(module, text, tree, flags)
    package = module_name if hasattr(module, "__path__") else module_name.rpartition(".")[0]
    for node in _statements(tree.body):
        if isinstance(node, _Function | ast.ClassDef):
            source.defined.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                place = alias.name if alias.asname else bound
                source.imported.setdefault(bound, []).append((place, ""))
        elif isinstance(node, ast.ImportFrom):
            place = "." * node.level + (node.module or "")
            place = importlib.util.resolve_name(place, package) if node.level else place
            for alias in node.names:
                if alias.name == "*":
                    source.stars.append(place)
                bound = alias.asname or alias.name
                source.imported.setdefault(bound, []).append((place, alias.name))
    return source


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or a class, also those under its conditions."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _members(source: _Source, cls: type) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in source.defined.get(cls.__name__, []):
        for member in _statements(node.body) if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, _Function):
                found.setdefault(member.name, []).append(member)
    return found


def _is_made_by(source: _Source, owner: type | None, node: ast.AST, found: Any) -> bool:
    assert isinstance(node, _Function)
    names = dict(vars(source.module))
    compared = _Comparison(source, names, owner)
    if any(ast.unparse(one).startswith("triton.jit") for one in node.decorator_list):
        # vLLM's own registry puts a stand-in there on the CPU platform.
        return _program(type(found)) in {"vllm", "triton"}
    own = _made(source, owner, node, names)
    return compared.alike(own, found)


def _made(source: _Source, owner: type | None, node: _Function, names: dict[str, Any]) -> Any:
    """What the text makes of a function, in a copy of its module's names."""
    arguments = node.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        one.annotation = None
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            rest.annotation = None
    node.returns = None
    statement: ast.stmt = node
    if owner is not None:
        statement = ast.ClassDef(owner.__name__, [], [], [node], [], lineno=1, col_offset=0)
        statement.end_lineno, statement.end_col_offset = 1, 0
    tree = ast.Module([statement], [])
    file = str(source.module.__file__)
    exec(compile(tree, file, "exec", flags=source.flags, dont_inherit=True), names)
    made = names[owner.__name__ if owner is not None else node.name]
    return vars(made)[node.name] if owner is not None else made


@dataclass
class _Comparison:
    """What was made in `copied` names, with what stands in the module's own."""

    source: _Source
    copied: dict[str, Any]
    owner: type | None

    def alike(self, own: Any, found: Any) -> bool:
        if own is found:
            return True
        if isinstance(own, type) and own.__name__ == getattr(self.owner, "__name__", None):
            return found is self.owner  # the class in the closure of `super()`
        if type(own) is not type(found):
            return False
        if isinstance(own, types.FunctionType):
            return self._functions(own, found)
        if isinstance(own, staticmethod | classmethod):
            return self.alike(own.__func__, found.__func__)
        if isinstance(own, property):
            return all(self.alike(getattr(own, p), getattr(found, p)) for p in ("fget", "fset"))
        if isinstance(own, functools.cached_property):
            return self.alike(own.func, found.func)
        if isinstance(own, types.MethodType):
            return self.alike(own.__func__, found.__func__)
        if isinstance(own, functools.partial):
            return False
        if isinstance(own, tuple):
            return len(own) == len(found) and all(map(self.alike, own, found))
        if isinstance(own, dict):
            return own.keys() == found.keys() and all(self.alike(own[k], found[k]) for k in own)
        if isinstance(own, int | float | str | bytes):
            return bool(own == found)
        return True

    def _functions(self, own: types.FunctionType, found: types.FunctionType) -> bool:
        cells = (own.__closure__ or (), found.__closure__ or ())
        if own.__globals__ is self.copied:
            expected, name = vars(self.source.module), own.__code__.co_qualname
            codes = [code for code in self.source.codes if code.co_qualname == name]
        else:
            expected, codes = own.__globals__, [own.__code__]
        return (
            found.__code__ in codes
            and found.__globals__ is expected
            and self.alike(own.__defaults__, found.__defaults__)
            and self.alike(own.__kwdefaults__, found.__kwdefaults__)
            and self.alike(vars(own), vars(found))
            and len(cells[0]) == len(cells[1])
            and all(
                self.alike(a.cell_contents, b.cell_contents) for a, b in zip(*cells, strict=True)
            )
        )


def _program(value: Any) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


def functions_of(member: Any) -> Iterator[types.FunctionType]:
    """The functions in a member of a class, and those that they wrap."""
    if isinstance(member, property):
        member = member.fget
    value = getattr(member, "__func__", member)
    while isinstance(value, types.FunctionType):
        yield value
        value = getattr(value, "__wrapped__", None)


def names_used(function: types.FunctionType) -> set[str]:
    """The names that a function, or one within it, may look up."""
    return {name for code in _codes(function.__code__) for name in code.co_names}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all those within."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _replaced_globals(source: _Source, member: Any) -> Iterator[str]:
    """What a method's module has under a name that the method uses, if not what its text says."""
    for name in sorted({n for one in functions_of(member) for n in names_used(one)}):
        if name in vars(source.module):
            found = _replaced_global(source, name, deeper=_REEXPORTS)
            if found is not None:
                yield found


def _assigner(source: _Source, name: str, value: Any) -> _Source | None:
    """Another module of vLLM whose text puts its own function of this name there, if one does.

    As `vllm/v1/worker/cpu/shm.py` of 0.32.0 does with `torch_utils.async_tensor_h2d`.
    """
    home = sys.modules.get(str(getattr(value, "__module__", "")))
    if home is None or home is source.module or _program(value) != "vllm":
        return None
    other = _source(home.__name__)
    puts = any(
        ast.unparse(node) == f"{source.module.__name__.rpartition('.')[2]}.{name} = {name}"
        for node in _statements(other.tree.body)
        if isinstance(node, ast.Assign)
    )
    return other if puts and vars(home).get(name) is value else None


def _replaced_global(source: _Source, name: str, deeper: int) -> str | None:
    value = vars(source.module).get(name)
    shown = f"{source.module.__name__}.{name}"
    if name in source.defined:
        nodes = source.defined[name]
        if any(isinstance(node, ast.ClassDef) for node in nodes):
            return None if isinstance(value, type) else shown
        plain = [n for n in nodes if isinstance(n, _Function) and not n.decorator_list]
        if len(plain) == len(nodes):
            if any(_is_made_by(source, None, node, value) for node in plain):
                return None
            other = _assigner(source, name, value)
            return shown if other is None else _replaced_global(other, name, deeper=0)
        return None if _program(inspect.unwrap(cast("Any", value))) == "vllm" else shown
    if name in source.imported or source.stars:
        places = source.imported.get(name, []) + [(star, name) for star in source.stars]
        for place, attribute in places:
            module = sys.modules.get(place)
            there = getattr(module, attribute, None) if attribute else module
            if there is None:
                there = sys.modules.get(f"{place}.{attribute}")
            if there is value:
                if deeper and attribute and place.partition(".")[0] == "vllm" and callable(value):
                    return _replaced_global(_source(place), attribute, deeper - 1)
                return None
        return shown if name not in source.assigned else None
    if name not in source.assigned:
        return None if name.startswith("__") else shown
    # What the text assigns is an object of vLLM's or of its libraries, seldom a function.
    made_by = value if isinstance(value, types.FunctionType | type) else type(value)
    stranger = callable(value) and _program(made_by) not in {"vllm", "torch", "triton", "typing"}
    return shown if stranger else None

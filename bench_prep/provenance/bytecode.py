"""Only source files count: bytecode that lies beside them is never run in the timing process.

A `.pyc` in `__pycache__` is trusted by Python when its header fits, whatever code it holds: the
header has the source's time and size, which can be equal by chance or be forged, or nothing to
check at all. Compiling the vLLM modules that a runner needs takes about a second.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

#: By path.
_compiled: dict[str, str] = {}


def compiled_sha256(path: str) -> str | None:
    """The file's SHA-256 when it was compiled; None where that was not done by us."""
    return _compiled.get(path)


class _FromSource(SourceFileLoader):
    """Compiles the source file; reads and writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        _compiled[self.path] = hashlib.sha256(source).hexdigest()
        code: CodeType = self.source_to_code(source, self.path)
        return code


class _Finder:
    """Finds the modules of one package as Python does, and loads them from source."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _FromSource(fullname, spec.loader.path)
            spec.cached = None
        return spec


def compile_from_source(package: str) -> None:
    """From here on this process compiles the package's modules from their source files.

    Raises:
        RuntimeError: the package is imported already.
    """
    if package in sys.modules:
        raise RuntimeError(f"{package} was imported before its bytecode was shut out")
    sys.meta_path.insert(0, _Finder(package))

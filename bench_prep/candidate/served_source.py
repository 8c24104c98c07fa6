"""What can be said of a worktree without importing it: whether the fast path can serve it.

Its runner is asked again when it is there (`fastpath.gates`); this only spares a build in vain.
"""

from __future__ import annotations

import ast
import io
import warnings
from contextlib import suppress
from pathlib import Path

from bench_prep.child.device import is_cpu
from bench_prep.errors import Missing
from bench_prep.settings import OUR_CANDIDATE, RunSettings

#: The V1 runner's class, by vLLM's platform.
RUNNERS = {
    "cpu": "vllm.v1.worker.cpu_model_runner:CPUModelRunner",
    "cuda": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
}
_PARENT = RUNNERS["cuda"].partition(":")[2]

_Node = ast.Module | ast.ClassDef | ast.FunctionDef


def require_served(worktree: Path | None, settings: RunSettings) -> None:
    """Before anything is built: no source that the fast path relies on is an unknown one.

    Nothing is asked without a worktree, or for another candidate. Nothing is said of a source that
    cannot be told from the text of one file: decorated, assigned, or inherited from elsewhere.
    Without a preparation there nothing is said at all.

    Raises:
        Missing: one is unknown.
    """
    if worktree is None or settings.candidate != OUR_CANDIDATE:
        return
    try:
        from bench_prep.fastpath.fingerprint import short_hashes, what_differs
    except ImportError:  # no torch yet, for which the build asks
        return
    platform = "cpu" if is_cpu(settings.device) else "cuda"
    with suppress(RuntimeError):  # `~` of nobody
        worktree = worktree.expanduser()
    parts = short_hashes(source_texts(worktree, platform))
    if "_prepare_inputs" not in parts:
        return  # hardly a vLLM, and the build says so
    differing = what_differs(parts, platform)
    if not differing:
        return
    raise Missing(
        f"the fast path does not serve this worktree: {differing} (for {platform})",
        "compare it with another worktree by --against, or time another --candidate",
    )


def source_texts(worktree: Path, platform: str) -> dict[str, str]:
    """The texts of the parts of `fastpath.fingerprint` that the worktree's files tell for sure."""
    from bench_prep.fastpath.fingerprint import CPU_SOURCES, RUNNER_METHODS, SOURCES

    modules = _Modules(worktree)
    texts = {}
    for name in RUNNER_METHODS:
        own = modules.definition(f"{RUNNERS[platform]}.{name}")
        if own is None and platform == "cpu" and modules.bases(RUNNERS["cpu"]) == [_PARENT]:
            own = modules.definition(f"{RUNNERS['cuda']}.{name}")
        texts[name] = own
    for name in SOURCES + (CPU_SOURCES if platform == "cpu" else ()):
        texts[name] = modules.definition(name)
    return {name: text for name, text in texts.items() if text is not None}


class _Modules:
    """The modules of a worktree, by their texts."""

    def __init__(self, worktree: Path) -> None:
        self._worktree = worktree
        self._read: dict[str, tuple[list[str], ast.Module] | None] = {}

    def bases(self, place: str) -> list[str]:
        """Names of the bases of the class at `module:class`."""
        _, node = self._find(place) or (None, None)
        return [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []

    def definition(self, place: str) -> str | None:
        """The text at `module:attribute.attribute`, or of a whole module; None if unsure."""
        lines, node = self._find(place) or ([], None)
        if isinstance(node, ast.Module):
            return "".join(lines)
        if node is None or node.decorator_list:
            return None
        from bench_prep.fastpath.fingerprint import block_text

        return block_text(lines, node.lineno - 1)

    def _find(self, place: str) -> tuple[list[str], _Node] | None:
        name, _, attributes = place.partition(":")
        if name not in self._read:
            self._read[name] = self._parsed(name)
        read = self._read[name]
        if read is None:
            return None
        lines, tree = read
        node: _Node = tree
        for attribute in attributes.split(".") if attributes else ():
            named = [
                one
                for one in node.body
                if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == attribute
            ]
            if len(named) != 1:
                return None
            node = named[0]
        return lines, node

    def _parsed(self, name: str) -> tuple[list[str], ast.Module] | None:
        """The lines as `linecache` counts them; None where attributes are assigned from outside."""
        path = self._worktree / (name.replace(".", "/") + ".py")
        try:
            text = path.read_text(encoding="utf-8")
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        assigned = (node.targets for node in tree.body if isinstance(node, ast.Assign))
        if any(isinstance(one, ast.Attribute) for targets in assigned for one in targets):
            return None
        return io.StringIO(text if text.endswith("\n") else text + "\n").readlines(), tree

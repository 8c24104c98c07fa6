"""What can be said of a worktree without importing it: whether the fast path can serve it.

Its runner is asked again when it is there (`fastpath.gates`); this only spares a build in vain.
"""

from __future__ import annotations

import ast
from pathlib import Path

from bench_prep.errors import Missing
from bench_prep.settings import OUR_CANDIDATE, RunSettings
from bench_prep.target import is_cpu

#: The V1 runner's class, by vLLM's platform.
RUNNERS = {
    "cpu": "vllm.v1.worker.cpu_model_runner:CPUModelRunner",
    "cuda": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
}
_SHOWN = 3


def require_served(worktree: Path | None, settings: RunSettings) -> None:
    """Before anything is built: no source that the fast path relies on is an unknown one.

    Nothing is asked without a worktree, or for another candidate. Nothing is said of a source that
    is not found, such as a method that is inherited from elsewhere.

    Raises:
        Missing: one is unknown.
    """
    if worktree is None or settings.candidate != OUR_CANDIDATE:
        return
    try:
        from bench_prep.fastpath.fingerprint import known, short_hashes
    except ImportError:  # no torch yet, for which the build asks
        return
    platform = "cpu" if is_cpu(settings.device) else "cuda"
    parts = short_hashes(source_texts(worktree, platform))
    differing = {
        entry["vllm"]: [name for name in parts if entry["parts"].get(name) != parts[name]]
        for entry in known()["sources"].values()
        if entry["platform"] == platform
    }
    if not differing or not all(differing.values()):
        return
    nearest = min(differing, key=lambda version: len(differing[version]))
    names = [name.replace(":", ".").rpartition(".")[2] for name in differing[nearest]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise Missing(
        f"the fast path does not serve this worktree, whose {', '.join(names[:_SHOWN])}{more} "
        f"{'is' if len(names) == 1 else 'are'} not vLLM {nearest}'s (for {platform})",
        "compare it with another worktree by --against, or time another --candidate",
    )


def source_texts(worktree: Path, platform: str) -> dict[str, str]:
    """The texts of the parts of `fastpath.fingerprint` that are found in the worktree's files."""
    from bench_prep.fastpath.fingerprint import CPU_SOURCES, RUNNER_METHODS, SOURCES

    classes = [RUNNERS[platform]] + [RUNNERS["cuda"]] * (platform == "cpu")
    places = {name: [f"{one}.{name}" for one in classes] for name in RUNNER_METHODS}
    for name in SOURCES + (CPU_SOURCES if platform == "cpu" else ()):
        places[name] = [name]
    files: dict[Path, tuple[str, ast.Module]] = {}
    texts = {}
    for name, asked in places.items():
        found = (_text(worktree, place, files) for place in asked)
        text = next((one for one in found if one is not None), None)
        if text is not None:
            texts[name] = text
    return texts


def _text(worktree: Path, place: str, files: dict[Path, tuple[str, ast.Module]]) -> str | None:
    """The text at `module:attribute.attribute`, or of a whole module; None if it is not there."""
    module, _, attributes = place.partition(":")
    path = worktree / (module.replace(".", "/") + ".py")
    if path not in files:
        try:
            text = path.read_text(encoding="utf-8")
            files[path] = text, ast.parse(text)
        except (OSError, ValueError, SyntaxError):
            return None
    text, tree = files[path]
    if not attributes:
        return text
    node: ast.Module | ast.ClassDef | ast.FunctionDef = tree
    for name in attributes.split("."):
        named = [
            one
            for one in node.body
            if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == name
        ]
        if not named:
            return None
        node = named[-1]
    assert not isinstance(node, ast.Module)
    from bench_prep.fastpath.fingerprint import block_text

    first = min(one.lineno for one in (node, *node.decorator_list))
    return block_text(text.splitlines(keepends=True), first - 1)

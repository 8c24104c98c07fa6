"""A copy of the worktree to build from: the user's tree stays clean, and edits cannot mix in."""

from __future__ import annotations

import hashlib
import re
import shutil
import zipfile
from pathlib import Path

from bench_prep.provenance.worktree import Worktree, add_to_tree_hash

_CPU_PARTS = re.compile(r"vllm/_C_AVX\w+\.abi3\.so")


def stage(worktree: Worktree, folder: Path) -> str:
    """Copy the worktree's sources into the new `folder`; the tree hash of what was copied.

    Raises:
        OSError: a file cannot be read or written.
    """
    tree = hashlib.sha256()
    names = []
    for name, path in worktree.sources().items():
        content = path.read_bytes()
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        shutil.copymode(path, copy)
        add_to_tree_hash(tree, name, content)
        names.append(name)
    _list_sources(folder, names)
    return tree.hexdigest()


def needs_narrow_cpu_parts() -> bool:
    """Whether this CPU lacks AVX-512 BF16, so that vLLM loads `_C_AVX512` or `_C_AVX2`."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx2" in flags and "avx512_bf16" not in flags


def add_narrow_cpu_parts(precompiled: Path, folder: Path) -> None:
    """Put the compiled parts for CPUs without AVX-512 BF16 into the staged tree.

    vLLM's precompiled switches take `_C` alone from a CPU wheel and forget these two.
    """
    with zipfile.ZipFile(precompiled) as wheel:
        names = [name for name in wheel.namelist() if _CPU_PARTS.fullmatch(name)]
        for name in names:
            wheel.extract(name, folder)
    _list_sources(folder, names)


def _list_sources(folder: Path, names: list[str]) -> None:
    """Name files for setuptools, which packs the data files that a checkout or this list names."""
    listed = folder / "vllm.egg-info" / "SOURCES.txt"
    listed.parent.mkdir(exist_ok=True)
    with listed.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(name + "\n" for name in names)

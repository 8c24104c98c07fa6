"""The Triton kernels without a GPU: interpreted, and compiled ahead of time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx90a", 64), ("hip", "gfx942", 64)]


def test_interpreted_they_write_what_the_host_writer_writes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fastpath.interpreted_kernel"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same writes" in done.stdout


@pytest.mark.parametrize(("backend", "arch", "warp_size"), TARGETS)
@pytest.mark.parametrize("branches", [False, True])
def test_they_compile_ahead_of_time(
    backend: str, arch: int | str, warp_size: int, branches: bool, tmp_path: Path
) -> None:
    """In a process of its own: the cache is empty and nothing interprets."""
    script = f"""
import triton
from triton.backends.compiler import GPUTarget
from bench_prep.fastpath import kernel
from tests.fastpath.target_sets import targets
of = targets(1, 128, 4096, [16], mrope={branches}, embeds={branches})
for source in (
    kernel.step_source(kernel.step_constants(of)), kernel.fixed_source(kernel.fixed_constants(of))
):
    compiled = triton.compile(source, target=GPUTarget({backend!r}, {arch!r}, {warp_size}))
    text = compiled.asm["ptx" if {backend!r} == "cuda" else "amdgcn"]
    print(len(compiled.kernel), {str(arch)!r} in text)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 2
    for size, for_target in lines:
        assert int(size) > 1000
        assert for_target == "True"

"""A worktree's requirement files, as far as a package index can serve them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_prep.errors import UsageError
from bench_prep.provenance.requirements import runtime_requirements

CPU = """# Common dependencies
-r common.txt

numba == 0.65.0 # Required
torch==2.13.0+cpu; platform_machine == "x86_64"
torchaudio; platform_machine != "s390x"
torchvision
torchcodec >= 0.14
triton @ https://example.org/triton-3.8.0+cpu-cp311.whl#sha256=ab ; python_version == "3.11"
intel-openmp==2024.2.1; platform_machine == "x86_64"
"""
COMMON = 'fastapi[standard] >= 0.133.0 # for "Starlette"\n# a comment\nregex\n'
CUDA = """-r common.txt
--extra-index-url https://example.org/whl/
torch==2.11.0
torchvision==0.26.0
flashinfer-python==0.6.14
flashinfer_cubin==0.6.14
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "requirements"
    folder.mkdir()
    for name, text in {"cpu": CPU, "common": COMMON, "cuda": CUDA}.items():
        (folder / f"{name}.txt").write_text(text)
    return tmp_path


def test_cpu(root: Path) -> None:
    assert runtime_requirements(root, "cpu") == [
        "fastapi[standard] >= 0.133.0",
        "regex",
        "numba == 0.65.0",
        'intel-openmp==2024.2.1; platform_machine == "x86_64"',
    ]


def test_cuda(root: Path) -> None:
    assert runtime_requirements(root, "cuda") == [
        "fastapi[standard] >= 0.133.0",
        "regex",
        "torchvision==0.26.0",
        "flashinfer-python==0.6.14",
    ]


def test_what_is_not_there(root: Path) -> None:
    with pytest.raises(UsageError, match="no requirements are known for 'abacus'"):
        runtime_requirements(root, "abacus")
    (root / "requirements" / "common.txt").unlink()
    with pytest.raises(UsageError, match=r"common\.txt"):
        runtime_requirements(root, "cpu")

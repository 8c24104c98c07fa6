"""Environments of their own that share this one's packages, but not its vLLM."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def make_bare_environment(folder: Path) -> Path:
    """The Python of a new environment with all that is installed in this one, but no vLLM."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("vllm", "__editable__.vllm", "__editable___vllm")):
            (site_packages(folder) / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Where packages lie in an environment."""
    (site,) = environment.glob("lib/python*/site-packages")
    return site


def copy_linked(source: Path, target: Path) -> None:
    """Copy a folder at once by links to its files; write a file anew (`rewrite`) to change it."""
    shutil.copytree(source, target, copy_function=lambda a, b: Path(b).hardlink_to(a))


def rewrite(path: Path, content: str | bytes) -> None:
    """Change one file of a folder made by `copy_linked`, and not what it is linked to."""
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)

"""What a worktree needs at run time, from its own requirement files, as far as an index has it."""

from __future__ import annotations

import re
from pathlib import Path

from bench_prep.errors import UsageError

#: Left out per device. `torch` is installed first, because the build needs it. For the CPU the rest
#: is named with builds that are on no package index, and only image, audio and video inputs use
#: it. FlashInfer's prebuilt kernels are on no index either; vLLM's own wheel leaves them out too.
_LEFT_OUT = {
    "cpu": {"torch", "torchvision", "torchaudio", "torchcodec", "triton"},
    "cuda": {"torch", "flashinfer-cubin", "flashinfer-jit-cache"},
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def runtime_requirements(root: Path, device: str) -> list[str]:
    """The lines of `requirements/<device>.txt` of the worktree at `root`, `-r` lines followed.

    Options such as other indexes are left out.

    Raises:
        UsageError: the worktree has no such file, or the device is unknown.
    """
    if device not in _LEFT_OUT:
        raise UsageError(
            f"no requirements are known for '{device}'", f"known: {', '.join(_LEFT_OUT)}"
        )
    found = []
    for line in _lines(root / "requirements" / f"{device}.txt"):
        name = _NAME.match(line)
        if name and name.group().lower().replace("_", "-") not in _LEFT_OUT[device]:
            found.append(line)
    return found


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the worktree's requirements cannot be read: {error}", "give a complete worktree"
        ) from None
    lines = []
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if line.startswith("-r "):
            lines += _lines(file.parent / line.removeprefix("-r ").strip())
        elif line:
            lines.append(line)
    return lines

"""What the machine is: processor, driver, Triton."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path


def cpu_model() -> str:
    """The host's processor, as the kernel names it, with the number of usable cores."""
    import os

    cores = len(os.sched_getaffinity(0))
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                name = line.partition(":")[2].strip()
                break
    return f"{name} ({cores} cores)"


def driver_version() -> str | None:
    """The version of the NVIDIA or AMD kernel driver, None where its file does not exist."""
    for name in ("/sys/module/nvidia/version", "/sys/module/amdgpu/version"):
        path = Path(name)
        if path.is_file():
            return path.read_text(encoding="utf-8").strip()
    nvidia = Path("/proc/driver/nvidia/version")
    if nvidia.is_file():
        words = nvidia.read_text(encoding="utf-8").split()
        return next((w for w in words if w[:1].isdigit() and "." in w), None)
    return None


def triton_version() -> str | None:
    """The installed Triton's version, None when there is none."""
    for name in ("triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None

"""Which device is meant by `--device`, before torch or vLLM is imported."""

from __future__ import annotations

from pathlib import Path

from bench_prep.errors import Missing

#: Read by vLLM when it is imported, so they belong in the environment of the timing process.
#: The V1 runner is the one whose preparation is timed; the CPU platform must be named because
#: vLLM otherwise recognises it by its version string only.
_ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0", "HF_HUB_OFFLINE": "1"}
_CPU_ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu"}


def has_device() -> bool:
    """Whether the device file of an NVIDIA or ROCm/DTK driver exists."""
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd"))


def require_device(device: str) -> None:
    """Before anything is built for it.

    Raises:
        Missing: `--device cuda` on a machine without such a device.
    """
    # /dev/dxg: a device that Windows lends to its Linux.
    if device == "cuda" and not has_device() and not Path("/dev/dxg").exists():
        raise Missing(
            "--device cuda: this machine has no NVIDIA, ROCm or DTK device (no driver's device "
            "file under /dev)",
            "use --device cpu, or load the device's driver",
        )


def is_cpu(device: str) -> bool:
    """Whether `auto`, `cpu` or `cuda` means vLLM's CPU platform on this machine."""
    return device == "cpu" or (device == "auto" and not has_device())


def target_device(device: str) -> str | None:
    """vLLM's build target: `cpu`, or None for vLLM's own choice on a machine with a device."""
    return "cpu" if is_cpu(device) else None


def child_environment(device: str) -> dict[str, str]:
    """The environment variables that vLLM must find when the timing process imports it."""
    return _ENVIRONMENT | (_CPU_ENVIRONMENT if is_cpu(device) else {})

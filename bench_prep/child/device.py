"""Which device is meant by `--device`, before torch or vLLM is imported."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bench_prep.errors import Missing

#: Read by vLLM when it is imported, so they belong in the environment of the timing process.
#: The V1 runner is the one whose preparation is timed; the CPU platform must be named because
#: vLLM otherwise recognises it by its version string only.
_ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0", "HF_HUB_OFFLINE": "1"}
_CPU_ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu"}
#: No plugin: one could replace what is timed, in both arms alike. A platform that is a plugin is
#: named by the user, in this same variable of vLLM's.
_DEFAULTS = {"VLLM_PLUGINS": ""}
#: The preparation has nothing to do in parallel. With more threads vLLM's loops in C++ wait for
#: busy cores, milliseconds at a time, which would only make the baseline look slow.
_CPU_DEFAULTS = {"OMP_NUM_THREADS": "1"}


#: Variables of drivers, and values of theirs that hide every device.
_VISIBLE, _HIDES_ALL = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), ("", "-1", "NoDevFiles")
_LOGGING = "VLLM_LOGGING_CONFIG_PATH"


def has_device() -> bool:
    """Whether the device file of an NVIDIA or ROCm/DTK driver exists."""
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd"))


def require_device(device: str) -> None:
    """Before anything is built for it: the device, and the file that vLLM's log is set up by.

    Raises:
        Missing: `--device cuda` on a machine without such a device, or they are all hidden; a
            VLLM_LOGGING_CONFIG_PATH with which vLLM would not start.
    """
    if config := os.environ.get(_LOGGING):
        try:
            json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            text = f"{_LOGGING}={config} cannot be read: {error}"
            raise Missing(text, f"correct the file, or unset {_LOGGING}") from None
    for name in _VISIBLE:
        hidden = os.environ.get(name, "0").strip() in _HIDES_ALL
        if hidden and device != "cpu" and (device == "cuda" or has_device()):
            raise Missing(
                f"--device {device}: {name}='{os.environ[name]}' hides every device",
                f"unset {name}, or use --device cpu",
            )
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
    defaults = _DEFAULTS | (_CPU_DEFAULTS if is_cpu(device) else {})
    given = {name: os.environ.get(name, value) for name, value in defaults.items()}
    if config := os.environ.get(_LOGGING):  # the child works elsewhere
        given[_LOGGING] = str(Path(config).absolute())
        given["VLLM_CONFIGURE_LOGGING"] = "1"  # vLLM refuses a file for what is switched off
    for name in _VISIBLE:
        # vLLM takes an empty one for Ray's, and waits for Triton to find a device later.
        if is_cpu(device) and not os.environ.get(name, "-1").strip():
            given[name] = "-1"
    return _ENVIRONMENT | (_CPU_ENVIRONMENT if is_cpu(device) else {}) | given

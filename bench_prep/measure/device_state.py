"""A device's state: NVIDIA's by NVML (nvidia-ml-py), AMD's by AMD SMI (amdsmi).

Both libraries are optional, and each field is asked for alone: virtual GPUs and MIG instances
answer some and refuse others. What is not answered is None, which says unknown and not "fine".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import psutil

IDLE = "idle"
POWER_CAP = "power cap"
#: Slower than asked for, because the hardware protects itself.
THROTTLES = (
    "hardware slowdown",
    "thermal slowdown by software",
    "thermal slowdown by hardware",
    "power brake",
    "thermal slowdown",
)


@dataclass(frozen=True)
class DeviceState:
    """One device at one moment; None is unknown.

    Attributes:
        clock_mhz, memory_clock_mhz: of its processors and of its memory, now.
        temperature_c: of the chip, in degrees Celsius.
        power_w, power_limit_w: drawn and allowed, in watts.
        reasons: why the clock is not at its maximum now, by the words of this module.
        slowed_ns: for how long it was so by each of these reasons, since the driver was loaded;
            reasons that the device does not count are absent. Of AMD's it is a count, not a time.
        other_processes: processes on the device that are not of this run.
    """

    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    reasons: tuple[str, ...] | None = None
    slowed_ns: dict[str, int] | None = None
    other_processes: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceState:
        reasons = data["reasons"]
        return cls(**data | {"reasons": None if reasons is None else tuple(reasons)})


def device_reader(index: int) -> Callable[[], DeviceState]:
    """What reads the state of torch's device `index`; without a library all of it is unknown."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    return _nvidia(properties) or _amd(properties) or DeviceState


def _nvidia(properties: Any) -> Callable[[], DeviceState] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, or a driver that it does not fit
        return None
    uuid = getattr(properties, "uuid", None)
    for name in (f"GPU-{uuid}", f"MIG-{uuid}"):
        with suppress(pynvml.NVMLError):
            return Nvml(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name.encode()))
    with suppress(pynvml.NVMLError, AttributeError):
        return Nvml(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(_bus(properties).encode()))
    return None


def _bus(properties: Any) -> str:
    return (
        f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}"
        f":{properties.pci_device_id:02x}.0"
    )


class Nvml:
    """Reads one NVIDIA device."""

    #: Bits of `nvmlDeviceGetCurrentClocksEventReasons`, from nvml.h.
    REASONS: ClassVar = {
        0x01: IDLE,
        0x02: "application clocks",
        0x04: POWER_CAP,
        0x08: "hardware slowdown",
        0x10: "sync boost",
        0x20: "thermal slowdown by software",
        0x40: "thermal slowdown by hardware",
        0x80: "power brake",
        0x100: "display clock",
    }
    #: Field values that add up the time for which a reason held, from nvml.h.
    COUNTERS: ClassVar = {
        74: POWER_CAP,
        75: "thermal slowdown",
        269: "thermal slowdown by software",
        270: "thermal slowdown by hardware",
        271: "power brake",
    }

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def __call__(self) -> DeviceState:
        nvml = self._nvml
        power, limit = self._ask("PowerUsage"), self._ask("EnforcedPowerLimit")
        reasons = self._ask("CurrentClocksEventReasons")
        if reasons is None:  # the name that drivers before 535 know
            reasons = self._ask("CurrentClocksThrottleReasons")
        return DeviceState(
            clock_mhz=self._ask("ClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("ClockInfo", nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            reasons=None
            if reasons is None
            else tuple(text for bit, text in self.REASONS.items() if reasons & bit),
            slowed_ns=self._slowed_ns(),
            other_processes=_others(
                process.pid
                for kind in ("ComputeRunningProcesses", "GraphicsRunningProcesses")
                for process in self._ask(kind) or ()
            ),
        )

    def _ask(self, what: str, *arguments: Any) -> Any:
        """`nvmlDeviceGet...` of this device; None where it does not answer."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _slowed_ns(self) -> dict[str, int] | None:
        nvml = self._nvml
        values = {
            nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        }
        found = {
            self.COUNTERS[field.fieldId]: int(getattr(field.value, values[field.valueType]))
            for field in self._ask("FieldValues", list(self.COUNTERS)) or ()
            if field.nvmlReturn == nvml.NVML_SUCCESS and field.valueType in values
        }
        if "thermal slowdown by hardware" in found:
            found.pop("thermal slowdown", None)  # what older drivers have in its place
        return found or None


def _amd(properties: Any) -> Callable[[], DeviceState] | None:
    try:
        import amdsmi

        amdsmi.amdsmi_init()
        return AmdSmi(amdsmi, amdsmi.amdsmi_get_processor_handle_from_bdf(_bus(properties)))
    except Exception:  # as for NVML; it also raises when its own library is absent
        return None


class AmdSmi:
    """Reads one AMD device."""

    #: What `amdsmi_get_violation_status` counts, `acc_...`, and says of now, `active_...`.
    REASONS: ClassVar = {
        "ppt_pwr": POWER_CAP,
        "prochot_thrm": "hardware slowdown",
        "socket_thrm": "thermal slowdown",
        "vr_thrm": "thermal slowdown by hardware",
        "hbm_thrm": "thermal slowdown by software",
    }

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self._amdsmi = amdsmi
        self._handle = handle

    def __call__(self) -> DeviceState:
        smi = self._amdsmi
        power = self._ask("power_info") or {}
        violations = self._ask("violation_status") or {}
        slowed = {
            text: violations[f"acc_{name}"]
            for name, text in self.REASONS.items()
            if isinstance(violations.get(f"acc_{name}"), int)
        }
        active = {
            text: violations[f"active_{name}"]
            for name, text in self.REASONS.items()
            if isinstance(violations.get(f"active_{name}"), bool | int)
        }
        drawn = (_number(power.get(f"{kind}_socket_power")) for kind in ("current", "average"))
        celsius = self._ask(
            "temp_metric",
            smi.AmdSmiTemperatureType.HOTSPOT,
            smi.AmdSmiTemperatureMetric.CURRENT,
        )
        return DeviceState(
            clock_mhz=self._clock(smi.AmdSmiClkType.GFX),
            memory_clock_mhz=self._clock(smi.AmdSmiClkType.MEM),
            temperature_c=_number(celsius),
            power_w=next((watts for watts in drawn if watts is not None), None),
            power_limit_w=_watts(_number(power.get("power_limit"))),
            reasons=tuple(text for text, holds in active.items() if holds) if active else None,
            slowed_ns=slowed or None,
            other_processes=_others(
                process["pid"] for process in self._ask("gpu_process_list") or ()
            ),
        )

    def _ask(self, what: str, *arguments: Any) -> Any:
        try:
            return getattr(self._amdsmi, f"amdsmi_get_{what}")(self._handle, *arguments)
        except (self._amdsmi.AmdSmiException, AttributeError):
            return None

    def _clock(self, kind: Any) -> int | None:
        return _number((self._ask("clock_info", kind) or {}).get("clk"))


def _number(value: Any) -> int | None:
    """AMD SMI says "N/A" for what it does not know."""
    return int(value) if isinstance(value, int | float) else None


def _watts(limit: int | None) -> float | None:
    """The power limit, which is in microwatts in some versions and in watts in others."""
    return limit if limit is None or limit < 100_000 else limit / 1e6


def _others(pids: Iterable[int]) -> int | None:
    """How many of the processes on the device are not of this run.

    The timing processes of a run have one parent. This process is on the device: if it is not
    listed, the list is of another PID namespace or of nobody, and says nothing.
    """
    listed = set(pids)
    if os.getpid() not in listed:
        return None
    return sum(not _of_this_run(pid) for pid in listed)


def _of_this_run(pid: int) -> bool:
    try:
        return pid == os.getpid() or psutil.Process(pid).ppid() == os.getppid()
    except psutil.Error:
        return False

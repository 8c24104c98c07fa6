"""What is made of NVML's answers: its real structures and errors, and answers as it gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bench_prep.measure.device_state import AmdSmi, DeviceState, Nvml

pynvml = pytest.importorskip("pynvml")

ANSWERS: dict[str, Any] = {
    "ClockInfo": 1980,
    "Temperature": 41,
    "PowerUsage": 120_500,
    "EnforcedPowerLimit": 700_000,
    "CurrentClocksEventReasons": 0x1 | 0x40,
    "ComputeRunningProcesses": [SimpleNamespace(pid=os.getpid())],
    "GraphicsRunningProcesses": [],
}


def refuse(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def field_values(handle: Any, wanted: list[int]) -> Any:
    """As NVML does: an array of unions, each with its own type and its own error."""
    values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
    for value, field in zip(values, wanted, strict=True):
        value.fieldId = field
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        value.nvmlReturn = pynvml.NVML_SUCCESS
        value.value.ullVal = 10**12 + field
        if field == 271:
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
    return values


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The real library's module, with these answers in place of a device's."""
    for what, answer in ANSWERS.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{what}", lambda *_, answer=answer: answer)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", field_values)
    return monkeypatch


def test_all_that_it_answers(nvml: pytest.MonkeyPatch) -> None:
    assert Nvml(pynvml, None)() == DeviceState(
        clock_mhz=1980,
        memory_clock_mhz=1980,
        temperature_c=41,
        power_w=120.5,
        power_limit_w=700.0,
        reasons=("idle", "thermal slowdown by hardware"),
        slowed_ns={
            "power cap": 10**12 + 74,
            "thermal slowdown by software": 10**12 + 269,
            "thermal slowdown by hardware": 10**12 + 270,
        },
        other_processes=0,
    )


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("ClockInfo", {"clock_mhz", "memory_clock_mhz"}),
        ("Temperature", {"temperature_c"}),
        ("PowerUsage", {"power_w"}),
        ("EnforcedPowerLimit", {"power_limit_w"}),
        ("CurrentClocksEventReasons", {"reasons"}),
        ("FieldValues", {"slowed_ns"}),
        ("ComputeRunningProcesses", {"other_processes"}),
    ],
)
def test_what_is_not_supported_is_unknown_alone(
    nvml: pytest.MonkeyPatch, what: str, fields: set[str]
) -> None:
    nvml.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", refuse)
    whole = Nvml(pynvml, None)()
    nvml.setattr(pynvml, f"nvmlDeviceGet{what}", refuse)
    part = Nvml(pynvml, None)()
    changed = {name for name, value in vars(part).items() if value != vars(whole)[name]}
    assert changed == fields
    assert all(vars(part)[name] is None for name in fields)


def test_a_device_that_refuses_everything_is_unknown(nvml: pytest.MonkeyPatch) -> None:
    for what in [*ANSWERS, "FieldValues", "CurrentClocksThrottleReasons"]:
        nvml.setattr(pynvml, f"nvmlDeviceGet{what}", refuse)
    assert Nvml(pynvml, None)() == DeviceState()


def test_an_older_driver_and_library(nvml: pytest.MonkeyPatch) -> None:
    nvml.delattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons")
    nvml.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda _: 0x80)
    assert Nvml(pynvml, None)().reasons == ("power brake",)


def test_an_older_driver_counts_all_thermal_slowdowns_together(nvml: pytest.MonkeyPatch) -> None:
    def old(handle: Any, wanted: list[int]) -> Any:
        values = field_values(handle, wanted)
        for value in values:
            if value.fieldId > 75:
                value.nvmlReturn = pynvml.NVML_ERROR_INVALID_ARGUMENT
        return values

    nvml.setattr(pynvml, "nvmlDeviceGetFieldValues", old)
    assert Nvml(pynvml, None)().slowed_ns == {
        "power cap": 10**12 + 74,
        "thermal slowdown": 10**12 + 75,
    }


def test_every_throttle_reason_has_the_bit_of_the_header() -> None:
    names = {
        "idle": "GpuIdle",
        "application clocks": "ApplicationsClocksSetting",
        "power cap": "SwPowerCap",
        "hardware slowdown": "HwSlowdown",
        "sync boost": "SyncBoost",
        "thermal slowdown by software": "SwThermalSlowdown",
        "thermal slowdown by hardware": "HwThermalSlowdown",
        "power brake": "HwPowerBrakeSlowdown",
        "display clock": "DisplayClockSetting",
    }
    bits = {
        getattr(pynvml, f"nvmlClocksThrottleReason{name}"): text for text, name in names.items()
    }
    assert bits == Nvml.REASONS


class TestOtherProcesses:
    @pytest.fixture
    def sibling(self) -> Iterator[int]:
        """Another process of the same run: of the same parent."""
        child = "import sys; print('ready', flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid

    def count(self, nvml: pytest.MonkeyPatch, *pids: int) -> int | None:
        processes = [SimpleNamespace(pid=pid) for pid in pids]
        nvml.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: processes)
        return Nvml(pynvml, None)().other_processes

    def test_a_stranger_counts(self, nvml: pytest.MonkeyPatch, sibling: int) -> None:
        # Seen from here that process is a child, and not one of our parent's.
        assert self.count(nvml, os.getpid(), sibling) == 1
        assert self.count(nvml, os.getpid(), os.getpid()) == 0

    def test_a_process_of_the_same_parent_does_not(
        self, nvml: pytest.MonkeyPatch, sibling: int
    ) -> None:
        nvml.setattr(os, "getppid", os.getpid)
        assert self.count(nvml, os.getpid(), sibling) == 0

    def test_a_list_without_this_process_says_nothing(self, nvml: pytest.MonkeyPatch) -> None:
        assert self.count(nvml) is None
        assert self.count(nvml, 2**22 + 1) is None


def test_amd_smi_says_not_available_for_what_it_does_not_know() -> None:
    """Its dictionaries, as amdsmi 7.0.2 builds them; the library needs a driver to be imported."""

    class AmdSmiException(Exception): ...

    def refuse_amd(*_: Any) -> Any:
        raise AmdSmiException

    smi = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        AmdSmiClkType=SimpleNamespace(GFX="gfx", MEM="mem"),
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        amdsmi_get_clock_info=lambda _, kind: {"clk": 2100 if kind == "gfx" else "N/A"},
        amdsmi_get_temp_metric=lambda *_: 55,
        amdsmi_get_power_info=lambda _: {
            "current_socket_power": "N/A",
            "average_socket_power": 140,
            "power_limit": 750_000_000,
        },
        amdsmi_get_violation_status=lambda _: {
            "acc_socket_thrm": 7,
            "acc_ppt_pwr": "N/A",
            "active_socket_thrm": True,
            "active_ppt_pwr": False,
        },
        amdsmi_get_gpu_process_list=refuse_amd,
    )
    assert AmdSmi(smi, None)() == DeviceState(
        clock_mhz=2100,
        temperature_c=55,
        power_w=140,
        power_limit_w=750.0,
        reasons=("thermal slowdown",),
        slowed_ns={"thermal slowdown": 7},
    )

"""Devices that a variable hides."""

from __future__ import annotations

import pytest

from bench_prep.child.device import child_environment, has_device, is_cpu, require_device
from bench_prep.errors import Missing


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_list_of_devices_is_no_device_to_wait_for(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """vLLM would keep Triton, which then finds no driver (case 08)."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert is_cpu("cpu") and child_environment("cpu")["CUDA_VISIBLE_DEVICES"] == "-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "CUDA_VISIBLE_DEVICES" not in child_environment("cpu")


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_hidden_devices_have_their_cause_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    require_device("cpu")
    if not has_device():
        require_device("auto")
    with pytest.raises(Missing, match=f"{name}='' hides every device"):
        require_device("cuda")

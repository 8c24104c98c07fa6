"""Devices that a variable hides."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("content", [None, "{"])
def test_a_logging_file_that_vllm_could_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    """Case 31, before anything is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "log.json")
    if content is not None:
        Path("log.json").write_text(content)
    with pytest.raises(Missing, match=r"VLLM_LOGGING_CONFIG_PATH=log\.json cannot be read"):
        require_device("cpu")
    Path("log.json").write_text("{}")
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    require_device("cpu")
    given = child_environment("cpu")
    assert given["VLLM_LOGGING_CONFIG_PATH"] == str(tmp_path / "log.json")
    assert given["VLLM_CONFIGURE_LOGGING"] == "1"

"""The variables of an engine's processes: both arms take the same kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench_prep.engine.vllm.launch import engine_environment
from bench_prep.fastpath.plugin import SWITCH

TUNING = ("TRITON_CACHE_AUTOTUNING", "TRITON_CACHE_DIR", "TRITON_PRINT_AUTOTUNING")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TUNING, "TRITON_HOME", SWITCH):
        monkeypatch.delenv(name, raising=False)


def test_arms_differ_by_the_switch_alone() -> None:
    on, off = (engine_environment("cpu", fastpath=one) for one in (True, False))
    assert set(on) == set(off)
    assert {name for name in on if on[name] != off[name]} == {SWITCH}


def test_what_triton_chose_is_kept_in_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    given = engine_environment("cuda", fastpath=True)
    assert [given[name] for name in TUNING] == ["1", str(Path.home() / ".triton" / "cache"), "1"]
    monkeypatch.setenv("TRITON_HOME", "/elsewhere")
    given = engine_environment("cuda", fastpath=True)
    assert given["TRITON_CACHE_DIR"] == "/elsewhere/.triton/cache"


@pytest.mark.parametrize("name", TUNING)
def test_what_the_user_says_is_left(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0")
    assert engine_environment("cuda", fastpath=False)[name] == "0"


def test_what_is_said_in_the_log_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without logging no server's log would say whether the fast path was used."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "./logger-config.json")
    given = engine_environment("cpu", fastpath=True)
    assert given["VLLM_CONFIGURE_LOGGING"] == "1"
    assert given["VLLM_LOGGING_CONFIG_PATH"] == ""


def test_no_home_for_tuned_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    monkeypatch.setenv("BENCH_PREP_CACHE", str(tmp_path))
    given = engine_environment("cuda", fastpath=True)
    assert given["TRITON_CACHE_DIR"] == str(tmp_path / ".triton" / "cache")

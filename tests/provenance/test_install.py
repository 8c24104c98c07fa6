"""An installation is whole, where it is looked for, or an error that says what to do."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from bench_prep.errors import Interrupted, NotTheWorktree
from bench_prep.provenance.build import BuiltWheel
from bench_prep.provenance.install import install_wheel, installed_vllm
from bench_prep.provenance.verify import fingerprint

pytest.importorskip("setuptools")


def dist_info(site: Path) -> Path:
    (found,) = site.glob("vllm-*.dist-info")
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_waits_for_the_end(
    built: BuiltWheel, site: Path, number: signal.Signals
) -> None:
    (dist_info(site) / "direct_url.json").unlink()  # so that it is installed again
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"once vllm-.* was installed") as error:
        install_wheel(built, lambda _: signal.raise_signal(number), site=site)
    assert error.value.exit_code == 130
    assert signal.getsignal(number) is before
    found = installed_vllm(site)
    assert found is not None and found.wheel_sha256 == built.sha256
    assert fingerprint(found, whole=True).ok


def test_pip_settings_of_the_environment_change_nothing(
    built: BuiltWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"DRY_RUN": "1", "ROOT": str(tmp_path / "root"), "UPGRADE": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    assert install_wheel(built, site=tmp_path / "site")
    assert not (tmp_path / "root").exists()


def test_an_installation_that_did_not_happen(
    built: BuiltWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[install]\ndry-run = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    with pytest.raises(NotTheWorktree, match="not the vLLM found here") as error:
        install_wheel(built, site=tmp_path / "site")
    assert "pip config list" in error.value.remedy


@pytest.mark.parametrize(
    "origin",
    [{"archive_info": None}, {"archive_info": {"hashes": None}}, {"dir_info": 1}, [], "\xff"],
)
def test_an_origin_that_says_nothing(site: Path, origin: Any) -> None:
    (dist_info(site) / "direct_url.json").write_text(json.dumps(origin))
    found = installed_vllm(site)
    assert found is not None and (found.wheel_sha256, found.editable) == (None, False)


def test_files_of_pip_that_are_not_text(site: Path) -> None:
    (dist_info(site) / "direct_url.json").write_bytes(b"\xff")
    assert installed_vllm(site) is not None
    (dist_info(site) / "METADATA").write_bytes(b"Name: vllm\xff\n")
    assert installed_vllm(site) is None

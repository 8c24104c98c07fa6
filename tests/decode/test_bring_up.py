"""What a timing process refuses to time."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench_prep.decode.imported import check_imported, import_vllm
from bench_prep.errors import NotTheWorktree
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.install import installed_vllm
from bench_prep.provenance.verify import fingerprint

pytestmark = pytest.mark.vllm
INIT = "vllm/__init__.py"


def verified() -> dict[str, str]:
    """The hashes of the installed package."""
    installed = installed_vllm()
    assert installed is not None
    return fingerprint(installed).python_hashes


def test_a_file_that_changed_after_it_was_verified() -> None:
    import vllm

    package = Path(vllm.__file__).parent
    with pytest.raises(NotTheWorktree, match="changed after it was verified"):
        check_imported({"package_dir": str(package), "hashes": verified() | {INIT: "another"}})


def test_a_module_from_elsewhere(tmp_path: Path) -> None:
    import vllm  # noqa: F401

    with pytest.raises(NotTheWorktree, match="not from the verified"):
        check_imported({"package_dir": str(tmp_path / "vllm"), "hashes": {}})


def test_what_was_verified_is_accepted() -> None:
    import vllm
    import vllm.spinloop  # a compiled part, and one that any processor can run

    check_imported({"package_dir": str(Path(vllm.__file__).parent), "hashes": verified()})


def test_a_module_that_is_no_verified_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    package = Path(vllm.__file__).parent
    stray = ModuleType("vllm.v1.worker.block_table")
    stray.__file__ = str(package / "v1" / "worker" / "__pycache__" / "__init__.pyc")
    monkeypatch.setitem(sys.modules, stray.__name__, stray)
    with pytest.raises(NotTheWorktree, match=r"__init__\.pyc, which is no verified file"):
        check_imported({"package_dir": str(package), "hashes": verified()})


def late(job: dict[str, Any]) -> None:
    """The work of a timing process in which a step imports what was not there before."""
    Path(job["package_dir"], "late.py").write_text("")
    sys.path.insert(0, str(Path(job["package_dir"]).parent))
    importlib.import_module("vllm.late")


def test_what_a_step_imports_is_checked_before_the_result_counts(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    hashes = {INIT: file_sha256(package / "__init__.py")}
    code = (
        "from bench_prep.child.job import do_job; "
        "from bench_prep.decode.imported import check_imported; "
        "from tests.decode.test_bring_up import late; do_job(late, check_imported)"
    )
    read_end, write_end = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({"package_dir": str(package), "hashes": hashes}) + "\n",
        env=os.environ | {"BENCH_PREP_EVENTS_FD": str(write_end)},
        pass_fds=[write_end],
        text=True,
    )
    os.close(write_end)
    with os.fdopen(read_end) as events:
        (event,) = map(json.loads, events)
    assert done.returncode == 0
    assert (event["event"], event["exit_code"]) == ("bench_prep.child.channel:Failed", 5)
    assert "vllm.late was imported" in event["message"]


def test_a_vllm_that_something_imports_at_start_up() -> None:
    import vllm

    with pytest.raises(NotTheWorktree, match="imports vllm when Python starts"):
        import_vllm(str(Path(vllm.__file__).parent))

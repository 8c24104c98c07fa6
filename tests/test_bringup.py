"""What a timing process refuses to time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_prep.bringup import _check_imported
from bench_prep.errors import NotTheWorktree

pytestmark = pytest.mark.vllm


def test_a_file_that_changed_after_it_was_verified() -> None:
    import vllm

    package = Path(vllm.__file__).parent
    with pytest.raises(NotTheWorktree, match="changed after it was verified"):
        _check_imported(package, {})


def test_a_module_from_elsewhere(tmp_path: Path) -> None:
    import vllm  # noqa: F401

    with pytest.raises(NotTheWorktree, match="not from the verified"):
        _check_imported(tmp_path / "vllm", {})


def test_what_was_verified_is_accepted() -> None:
    import vllm  # noqa: F401

    from bench_prep.provenance.install import installed_vllm
    from bench_prep.provenance.verify import fingerprint

    installed = installed_vllm()
    assert installed is not None
    verification = fingerprint(installed)
    _check_imported(verification.package_dir, verification.python_hashes)

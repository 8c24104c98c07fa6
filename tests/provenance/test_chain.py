"""The chain on the real vLLM: build, install, verify, and what each kind of change does to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_prep.errors import Missing, NotTheWorktree
from bench_prep.provenance import verify
from bench_prep.provenance.build import build_wheel
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.install import install_wheel, installed_vllm
from bench_prep.provenance.verify import KEY_SOURCES, fingerprint, require_ok

from .conftest import Chain

pytestmark = pytest.mark.build
BLOCK_TABLE = "vllm/v1/worker/block_table.py"


@pytest.fixture(autouse=True)
def _the_chains_cache(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_PREP_CACHE", str(chain.cache))


def test_the_installed_package_is_the_worktree(chain: Chain) -> None:
    installed = installed_vllm(chain.site)
    assert installed is not None
    verification = verify.verify(chain.worktree, installed)
    require_ok(verification)
    assert {check.path for check in verification.key_sources} == set(KEY_SOURCES)
    assert len(verification.files) > 2000
    assert fingerprint(installed).key_sources_sha256 == verification.key_sources_sha256


def test_an_unchanged_worktree_is_not_rebuilt(chain: Chain) -> None:
    said: list[str] = []
    again = build_wheel(chain.worktree, chain.parts, "cpu", said.append)
    assert again.cached
    assert again.sha256 == chain.built.sha256
    assert "unchanged" in said[0]
    assert not install_wheel(again, site=chain.site)


def test_an_edited_key_source_is_named(chain: Chain) -> None:
    file = chain.worktree.root / BLOCK_TABLE
    before = file.read_text()
    file.write_text(before + "\n# edited\n")
    try:
        installed = installed_vllm(chain.site)
        assert installed is not None
        with pytest.raises(NotTheWorktree, match=r"block_table\.py \(differs\)"):
            require_ok(verify.verify(chain.worktree, installed))
    finally:
        file.write_text(before)


def test_a_failing_build_leaves_cache_and_installation_alone(chain: Chain) -> None:
    file = chain.worktree.root / "setup.py"
    before = file.read_text()
    wheels = set((chain.cache / "wheels").rglob("*"))
    file.write_text(before + "\nthis is no python\n")
    try:
        with pytest.raises(Missing, match="SyntaxError: invalid syntax") as error:
            build_wheel(chain.worktree, chain.parts, "cpu", print)
    finally:
        file.write_text(before)
    assert "SyntaxError" in Path(error.value.remedy.split()[-1]).read_text()
    assert set((chain.cache / "wheels").rglob("*")) == wheels
    assert not (cache_dir() / "building").exists()
    installed = installed_vllm(chain.site)
    assert installed is not None
    require_ok(verify.verify(chain.worktree, installed))

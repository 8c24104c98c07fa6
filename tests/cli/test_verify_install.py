"""`verify-install --json` for machines, and `--result` for a result of earlier."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bench_prep.measure.records import ARMS, Block, Round
from bench_prep.provenance.hashes import combined_sha256
from bench_prep.report.rows import rows
from bench_prep.report.store import append
from bench_prep.settings import RunSettings

from .conftest import Bench

RESULTS = Path(__file__).resolve().parents[2] / "results"


def write_run(path: Path, run_id: str, **proof: Any) -> None:
    blocks = [Block(arm, {"host": [3, 4, 5], "ready": [4, 5, 6]}) for arm in ARMS]
    frame = rows(
        RunSettings(iters=3),
        [Round((blocks[0], blocks[1], blocks[2]))],
        equal=True,
        partial=False,
        environment=proof,
        run_id=run_id,
        started="2025-01-01T00:00:00Z",
    )
    append(path, frame)


@pytest.fixture
def proof(bench: Bench) -> dict[str, str]:
    """What a run on the installed vLLM records."""
    done = bench("verify-install", "--json")
    assert done.code == 0, done.err
    names = ("vllm_version", "wheel_sha256", "key_sources_sha256")
    return {name: json.loads(done.out)[name] for name in names}


@pytest.mark.vllm
class TestJson:
    def test_keys(self, bench: Bench) -> None:
        done = bench("verify-install", "--json")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        assert found["ok"] is True
        assert found["compared_with"][0] == "RECORD"
        assert found["problems"] == found["wrong"] == []
        assert "vllm/v1/worker/block_table.py" in found["key_sources"]
        assert found["files"] > 2000
        assert found["worktree"] is found["result"] is None
        readme = (RESULTS.parent / "README.md").read_text()
        assert [key for key in found if f"`{key}`" not in readme] == []

    def test_another_worktree(self, bench: Bench, tmp_path: Path) -> None:
        root = tmp_path / "tree"
        (root / "vllm").mkdir(parents=True)
        (root / "vllm" / "__init__.py").write_text("ANOTHER = 1\n")
        (root / "pyproject.toml").write_text('[project]\nname = "vllm"\n')
        (root / "PKG-INFO").write_text("Name: vllm\nVersion: 0.32.0\n")
        done = bench("verify-install", "--json", "--worktree", root)
        assert done.code == 5
        assert done.err.startswith("error: ")
        found = json.loads(done.out)
        assert found["ok"] is False
        wrong = {file["path"]: file for file in found["wrong"]}
        assert wrong["vllm/__init__.py"]["problem"] == "differs"
        assert len(wrong["vllm/__init__.py"]["worktree_sha256"]) == 64
        assert wrong["vllm/v1/worker/block_table.py"]["problem"] == "extra"


@pytest.mark.vllm
class TestResult:
    def test_the_last_run_or_the_named_one(
        self, bench: Bench, tmp_path: Path, proof: dict[str, str]
    ) -> None:
        path = tmp_path / "a.csv"
        write_run(path, "older", **proof | {"wheel_sha256": "0" * 64})
        write_run(path, "newer", **proof)
        done = bench("verify-install", "--result", path)
        assert done.code == 0, done.err
        assert done.out.splitlines()[-1] == f"result   the vLLM of run newer in {path}"
        done = bench("verify-install", "--result", path, "--run", "older")
        done.refused(5, "not the one of run older", f"wheel_sha256 was {'0' * 64}, is ")
        assert "key_sources_sha256" not in done.err
        done = bench("verify-install", "--result", path, "--run", "older", "--json")
        assert done.code == 5
        found = json.loads(done.out)
        assert found["ok"] is False
        assert found["result"]["run"] == "older"
        assert list(found["result"]["differs"]) == ["wheel_sha256"]

    def test_a_wheel_that_the_run_did_not_know(
        self, bench: Bench, tmp_path: Path, proof: dict[str, str]
    ) -> None:
        del proof["wheel_sha256"]
        write_run(tmp_path / "a.csv", "same", **proof)
        assert bench("verify-install", "--result", "a.csv").code == 0
        write_run(tmp_path / "a.csv", "other", **proof | {"key_sources_sha256": "1" * 64})
        bench("verify-install", "--result", "a.csv").refused(5, "key_sources_sha256 was 1111")

    def test_results_of_an_older_schema(self, bench: Bench) -> None:
        done = bench("verify-install", "--result", RESULTS / "h200-0.26.0.csv")
        done.refused(5, "wheel_sha256 was ")


def test_a_run_of_two_worktrees_is_compared_with_their_environments(
    bench: Bench, tmp_path: Path, environment: dict[str, str]
) -> None:
    def make(sha256: str, text: str) -> Path:
        site = Path(environment["BENCH_PREP_CACHE"]) / "envs" / sha256[:32]
        info = site / "vllm-0.32.0.dist-info"
        file = site / "vllm" / "v1" / "utils.py"
        for folder in (info, file.parent):
            folder.mkdir(parents=True)
        file.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
        (info / "RECORD").write_text(f"vllm/v1/utils.py,sha256={digest.rstrip('=')},{len(text)}\n")
        origin = {"url": "file:///x.whl", "archive_info": {"hashes": {"sha256": sha256}}}
        (info / "direct_url.json").write_text(json.dumps(origin))
        return file

    def combined(text: str) -> str:
        return combined_sha256({"vllm/v1/utils.py": hashlib.sha256(text.encode()).hexdigest()})

    one, two = "1" * 64, "2" * 64
    file = make(one, "ONE = 1\n")
    proof = {
        "vllm_version": "0.32.0",
        "wheel_sha256": one,
        "key_sources_sha256": combined("ONE = 1\n"),
        "against_wheel_sha256": two,
        "against_key_sources_sha256": combined("TWO = 2\n"),
    }
    write_run(tmp_path / "a.csv", "pair", **proof)
    done = bench("verify-install", "--result", "a.csv")
    done.refused(6, f"the environment of wheel {two[:12]}", "is no longer in the cache")
    other = make(two, "TWO = 2\n")
    done = bench("verify-install", "--result", "a.csv")
    assert (done.code, done.err) == (0, "")
    other.write_text("TWO = 3\n")
    bench("verify-install", "--result", "a.csv").refused(5, "vllm/v1/utils.py (RECORD differs)")
    other.write_text("TWO = 2\n")
    file.unlink()
    assert bench("verify-install", "--result", "a.csv").code == 5


def test_files_without_an_answer(bench: Bench, tmp_path: Path) -> None:
    bench("verify-install", "--result", "a.csv").refused(2, "no such file: a.csv")
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe")
    bench("verify-install", "--result", "a.csv").refused(2, "cannot be read")
    path.write_text("baseline_before_ms,candidate_ms,baseline_after_ms\n1,1,1\n")
    bench("verify-install", "--result", "a.csv").refused(2, "has no run of bench-prep")
    path.unlink()
    write_run(path, "one")
    bench("verify-install", "--result", "a.csv").refused(2, "does not say what it was measured on")
    bench("verify-install", "--result", "a.csv", "--run", "two").refused(2, "has no run two")

"""`verify-install --json` for machines, and `--result` for a result of earlier."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from bench_prep.provenance.hashes import combined_sha256, file_sha256
from bench_prep.results.recorded import read_recorded

from .conftest import Bench
from .results import write_run

RESULTS = Path(__file__).resolve().parents[2] / "results"


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
        page = (RESULTS.parent / "docs" / "provenance.md").read_text()
        assert [key for key in found if f"`{key}`" not in page] == []

    def test_another_worktree(self, bench: Bench, tmp_path: Path) -> None:
        root = tmp_path / "tree"
        (root / "vllm").mkdir(parents=True)
        (root / "vllm" / "__init__.py").write_text("ANOTHER = 1\n")
        (root / "pyproject.toml").write_text('[project]\nname = "vllm"\n')
        (root / "PKG-INFO").write_text("Name: vllm\nVersion: 0.32.0\n")
        done = bench("verify-install", "--json", "--worktree", root)
        assert done.code == 5
        assert done.err.startswith("error: ")
        assert "bench-prep build --worktree DIR [--precompiled WHEEL] --install" in done.err
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
        done = bench("verify-install", "--result", "a.csv")
        assert done.code == 0
        assert "not compared: the run's wheel, because its row names none" in done.out
        write_run(tmp_path / "a.csv", "other", **proof | {"key_sources_sha256": "1" * 64})
        bench("verify-install", "--result", "a.csv").refused(5, "key_sources_sha256 was 1111")

    def test_results_of_an_older_schema(self, bench: Bench) -> None:
        done = bench("verify-install", "--result", RESULTS / "h200-0.26.0.csv")
        done.refused(5, "wheel_sha256 was ")


class TestTwoWorktrees:
    """A run with --against is compared with the environments of both, `1...` and `2...`."""

    WHEELS: ClassVar = {"candidate": "1" * 64, "baseline": "2" * 64}
    UTILS = Path("vllm", "v1", "utils.py")
    PART = Path("vllm", "_C.abi3.so")

    @pytest.fixture(autouse=True)
    def environments(
        self, tmp_path: Path, environment: dict[str, str]
    ) -> Iterator[dict[str, Path]]:
        """Their folders, both as the run in a.csv found them."""
        made, sources = {}, {}
        for name, sha256 in self.WHEELS.items():
            site = Path(environment["BENCH_PREP_CACHE"]) / "envs" / sha256[:32]
            info = site / "vllm-0.32.0.dist-info"
            for folder in (info, (site / self.UTILS).parent):
                folder.mkdir(parents=True)
            record = ""
            for file in (self.UTILS, self.PART):
                content = f"NAME = {name!r}\n".encode()
                (site / file).write_bytes(content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
                record += f"{file},sha256={digest.rstrip('=')},{len(content)}\n"
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
            (info / "RECORD").write_text(record)
            origin = {"url": "file:///x.whl", "archive_info": {"hashes": {"sha256": sha256}}}
            (info / "direct_url.json").write_text(json.dumps(origin))
            made[name] = site
            sources[name] = combined_sha256({self.UTILS.as_posix(): file_sha256(site / self.UTILS)})
        proof = {
            "vllm_version": "0.32.0",
            "wheel_sha256": self.WHEELS["candidate"],
            "key_sources_sha256": sources["candidate"],
            "against_wheel_sha256": self.WHEELS["baseline"],
            "against_key_sources_sha256": sources["baseline"],
        }
        write_run(tmp_path / "a.csv", "pair", **proof)
        yield made
        for site in made.values():
            shutil.rmtree(site, ignore_errors=True)

    def test_both_as_they_were(self, bench: Bench) -> None:
        done = bench("verify-install", "--result", "a.csv", "--json")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        assert found["ok"] is True
        assert found["result"] == {"file": "a.csv", "run": "pair", "differs": {}}

    @pytest.mark.parametrize("name", WHEELS)
    def test_one_is_gone(self, bench: Bench, environments: dict[str, Path], name: str) -> None:
        keys = json.loads(bench("verify-install", "--result", "a.csv", "--json").out)
        shutil.rmtree(environments[name])
        gone = f"the environment of wheel {self.WHEELS[name][:12]}"
        bench("verify-install", "--result", "a.csv").refused(6, gone, "is no longer in the cache")
        done = bench("verify-install", "--result", "a.csv", "--json")
        done.refused(6, gone)
        found = json.loads(done.out)
        assert found["ok"] is False
        assert [problem for problem in found["problems"] if gone in problem] == found["problems"]
        assert found["result"] == {"file": "a.csv", "run": "pair", "differs": {}}
        assert list(found) == list(keys)

    @pytest.mark.parametrize("name", WHEELS)
    def test_one_was_edited(self, bench: Bench, environments: dict[str, Path], name: str) -> None:
        (environments[name] / self.UTILS).write_text("EDITED = 1\n")
        reason = "vllm/v1/utils.py (RECORD differs)"
        bench("verify-install", "--result", "a.csv").refused(5, reason)
        done = bench("verify-install", "--result", "a.csv", "--json")
        done.refused(5, reason)
        found = json.loads(done.out)
        assert found["ok"] is False
        assert [file["path"] for file in found["wrong"]] == ["vllm/v1/utils.py"]

    @pytest.mark.parametrize(
        ("compared", "column", "differs"),
        [
            (True, "tree_sha256", True),
            (False, "vllm_commit", True),
            (True, "vllm_commit", False),  # the wheel of an equal tree is used again
        ],
    )
    def test_another_tree_than_the_wheel_was_built_from(
        self,
        bench: Bench,
        environments: dict[str, Path],
        environment: dict[str, str],
        tmp_path: Path,
        compared: bool,
        column: str,
        differs: bool,
    ) -> None:
        site, sha256 = environments["candidate"], self.WHEELS["candidate"]
        place = Path(environment["BENCH_PREP_CACHE"]) / "wheels" / sha256[:32]
        place.mkdir(parents=True)
        with zipfile.ZipFile(place / "a.whl", "w") as wheel:
            for file in site.rglob("*"):
                wheel.write(file, file.relative_to(site))
        was = {"tree_hash": "3" * 64, "commit": "4" * 40}
        record = {"wheel": "a.whl", "sha256": sha256, **was}
        (place / "record.json").write_text(json.dumps(record))
        proof = read_recorded(tmp_path / "a.csv", None)
        same = {"tree_sha256": was["tree_hash"], "vllm_commit": was["commit"]}
        both = {f"against_{n}": v for n, v in proof.against.items() if v} | proof.proof
        try:
            write_run(tmp_path / "a.csv", "same", **both | same, compared=compared)
            assert bench("verify-install", "--result", "a.csv").code == 0
            write_run(
                tmp_path / "a.csv", "b", **both | same | {column: "5" * 40}, compared=compared
            )
            done = bench("verify-install", "--result", "a.csv")
            assert done.code == (5 if differs else 0)
            assert (f"{column} was {'5' * 40}, is " in done.err) is differs
        finally:
            shutil.rmtree(place)

    @pytest.mark.parametrize("name", WHEELS)
    def test_a_compiled_part_was_edited(
        self, bench: Bench, environments: dict[str, Path], name: str
    ) -> None:
        part = environments[name] / self.PART
        part.write_bytes(part.read_bytes().swapcase())
        assert bench("verify-install", "--result", "a.csv").code == 0  # its size alone is compared
        done = bench("verify-install", "--result", "a.csv", "--whole")
        done.refused(5, "vllm/_C.abi3.so (RECORD differs)")


def test_no_vllm_is_an_answer(bench: Bench, bare_python: Path) -> None:
    done = bench("verify-install", "--json", python=bare_python)
    done.refused(6, "vLLM is not installed")
    found = json.loads(done.out)
    assert found["ok"] is False
    assert found["problems"] == ["vLLM is not installed in this environment"]
    assert found["package_dir"] is None


def test_files_without_an_answer(bench: Bench, tmp_path: Path) -> None:
    bench("verify-install", "--result", "a.csv").refused(2, "no such file: a.csv")
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe")
    bench("verify-install", "--result", "a.csv").refused(2, "is not a CSV file")
    path.write_text("baseline_before_ms,candidate_ms,baseline_after_ms\n1,1,1\n")
    bench("verify-install", "--result", "a.csv").refused(2, "has no run of bench-prep")
    path.unlink()
    write_run(path, "one")
    bench("verify-install", "--result", "a.csv").refused(2, "does not say what it was measured on")
    bench("verify-install", "--result", "a.csv", "--run", "two").refused(2, "has no run two")
    write_run(path, "two", key_sources_sha256="1" * 64, tree_sha256="2" * 64)
    bench("verify-install", "--result", "a.csv").refused(2, "a tree but not the wheel")
    whole = path.read_text()
    path.write_text(whole[: whole.rindex(",", 0, -40)])
    bench("verify-install", "--result", "a.csv").refused(2, "the last row is torn")

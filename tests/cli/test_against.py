"""Two worktrees against each other, on real pairs made from the official source distribution."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Bench

pytestmark = [pytest.mark.vllm, pytest.mark.build]
PATCHES = Path(__file__).resolve().parents[2] / "examples" / "worktrees"


@pytest.fixture(scope="module")
def official() -> tuple[Path, Path]:
    """The official worktree and the wheel with its compiled parts, as the set-up fetched them."""
    from bench_prep.child.device import is_cpu
    from bench_prep.provenance.official import official_precompiled, official_worktree

    if not is_cpu("auto"):
        pytest.skip("the patches are for the CPU platform")
    return official_worktree().root, official_precompiled()


def patched(official: Path, folder: Path, patch: str) -> Path:
    shutil.copytree(official, folder)
    subprocess.run(
        ["git", "apply", "--unsafe-paths", f"--directory={folder}", PATCHES / patch],
        check=True,
        cwd=folder,
    )
    return folder


def arguments(
    candidate: Path, official: tuple[Path, Path], rounds: int = 1, iters: int = 20
) -> tuple[object, ...]:
    """The candidate against the official worktree, into `out.csv`."""
    tree, parts = official
    return (
        "run", "--worktree", candidate, "--against", tree, "--precompiled", parts,
        "--rounds", rounds, "--iters", iters, "--output", "out.csv",
    )  # fmt: skip


def test_a_faster_and_exact_change(
    bench: Bench, tmp_path: Path, official: tuple[Path, Path]
) -> None:
    tree, _ = official
    candidate = patched(tree, tmp_path / "candidate", "faster_and_exact.patch")
    done = bench(*arguments(candidate, official, rounds=2, iters=300))
    assert done.code in (0, 4), done.err
    assert "whole state identical after each of 53 steps" in done.out
    frame = pd.read_csv(tmp_path / "out.csv")
    row = frame[frame["clock"] == "host"].iloc[0]
    assert row["candidate"] == "worktree:GPUModelRunner._prepare_inputs"
    assert row["equal"]
    assert row["candidate_ms"] < row["baseline_ms"]
    assert row["clock_cost_ns"] > 0
    # The two processes are seen as one, whose work is not that of others.
    after = json.loads(row["machine_state"])["after"]
    assert after["own_s"] > 0
    assert after["device"] is None
    for column in ("tree_sha256", "wheel_sha256", "key_sources_sha256"):
        assert row[column] != row[f"against_{column}"]
        assert len(row[f"against_{column}"]) == 64
    # Neither replaces what is installed.
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and "envs" not in str(spec.origin)


def test_a_damaged_environment_is_not_what_is_timed(
    bench: Bench, tmp_path: Path, official: tuple[Path, Path], environment: dict[str, str]
) -> None:
    tree, _ = official
    candidate = patched(tree, tmp_path / "candidate", "faster_and_exact.patch")
    compare = arguments(candidate, official)
    done = bench(*compare)
    assert done.code in (0, 4), done.err
    frame = pd.read_csv(tmp_path / "out.csv")
    runner = Path("vllm", "v1", "worker", "gpu_model_runner.py")
    # A preparation that fails at once, in the baseline, and a runner that is not there.
    envs = Path(environment["BENCH_PREP_CACHE"]) / "envs"
    baseline = envs / frame["against_wheel_sha256"].iloc[-1][:32] / runner
    right = baseline.read_text()
    baseline.write_text(right.replace("def _prepare_inputs(", "def _gone("))
    missing = envs / frame["wheel_sha256"].iloc[-1][:32] / runner
    missing.unlink()
    done = bench(*compare)
    assert done.code in (0, 4), done.err
    said = [line.strip() for line in done.out.splitlines() if "made anew" in line]
    assert said == [
        f"that environment was damaged, and made anew: {runner} ({problem})"
        for problem in ("RECORD differs", "missing")
    ]
    assert baseline.read_text() == right
    again = pd.read_csv(tmp_path / "out.csv")
    assert again["run"].nunique() == 2
    for column in ("key_sources_sha256", "against_key_sources_sha256"):
        assert again[column].nunique() == 1


def test_a_faster_and_wrong_change(
    bench: Bench, tmp_path: Path, official: tuple[Path, Path]
) -> None:
    tree, _ = official
    candidate = patched(tree, tmp_path / "candidate", "faster_and_wrong.patch")
    done = bench(*arguments(candidate, official))
    done.refused(
        3, "at position 24576", "block_tables[0].slot_mapping", "[0]: expected ", ", found "
    )
    assert not (tmp_path / "out.csv").exists()


def test_a_host_mirror_that_is_cut_off_from_its_buffer(
    bench: Bench, tmp_path: Path, official: tuple[Path, Path]
) -> None:
    tree, _ = official
    candidate = tmp_path / "candidate"
    shutil.copytree(tree, candidate)
    runner = candidate / "vllm" / "v1" / "worker" / "gpu_model_runner.py"
    text = runner.read_text()
    begin = text.index("def _prepare_inputs(")
    end = text.index("        return (\n", begin)
    cut = "        self.query_start_loc.np = self.query_start_loc.np.copy()\n"
    runner.write_text(text[:end] + cut + text[end:])
    done = bench(*arguments(candidate, official))
    done.refused(3, " position 24576: query_start_loc.np ", " in one worktree alone")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--against", "."), "--against compares two worktrees"),
        (("--against", ".", "--worktree", ".", "--no-build"), "--against compares two worktrees"),
        (("--against", ".", "--candidate", "a:b"), "--candidate and --against exclude each other"),
    ],
)
def test_what_does_not_go_together(bench: Bench, arguments: tuple[str, ...], text: str) -> None:
    bench("run", *arguments).refused(2, text)

"""The script that gives the same pairs to other tools: each finds what nobody can miss."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from bench_prep.calibrate.workload import HostWork

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Little(HostWork):
    units = 160


@pytest.mark.parametrize(
    "tool, package, effect, verdict",
    [
        ("torch.utils.benchmark", "torch", 900.0, "slower"),
        ("torch.utils.benchmark", "torch", -90.0, "faster"),
        ("two blocks", "scipy", 900.0, "slower"),
        ("two blocks", "scipy", -90.0, "faster"),
        ("pyperf", "pyperf", 900.0, "slower"),
        ("pytest-benchmark", "pytest_benchmark", -90.0, "faster"),
    ],
)
def test_each_tool_finds_a_factor_of_ten(
    peers: ModuleType, tool: str, package: str, effect: float, verdict: str
) -> None:
    pytest.importorskip(package)
    rng = np.random.default_rng(1)
    found = peers.TOOLS[tool][0](0.1)(peers.Pair(Little(rng), effect, rng))
    assert set(found) == set(peers.TOOLS[tool][0].rules)
    assert set(found.values()) == {verdict}, found


def test_thresholds(peers: ModuleType) -> None:
    pairs = [(1.0, 1.009), (1.0, 1.011), (1.009, 1.0), (1.011, 1.0)]
    assert [peers.larger(*pair) for pair in pairs] == ["same", "slower", "same", "faster"]
    assert [peers.by_order(*pair) for pair in [(1, 1), (1, 2), (2, 1)]] == [
        *("same", "slower", "faster"),
    ]


def test_the_script_and_its_table(tmp_path: Path) -> None:
    """In a second nothing has to be settled; every verdict is in the file, and in the table."""
    output = tmp_path / "peers.csv"
    tools = "bench-prep,two blocks,triton.testing.do_bench"
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPT), "--runs", "1", "--seconds", "0.3"),
            *("--tools", tools, "--output", str(output)),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "triton.testing.do_bench is left out" in done.stdout
    frame = pd.read_csv(output)
    assert len(frame) == 2 * (1 + 3)
    assert set(frame["verdict"]) <= {"faster", "slower", "same", "inconclusive"}
    assert "Mann-Whitney" in done.stdout and "numpy==" in done.stdout

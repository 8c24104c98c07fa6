"""Sizes that no machine has, before anything is built or launched, and what is found out later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench_prep.child.launch import launched
from bench_prep.child.memory import require_engines_memory, require_runners_memory
from bench_prep.errors import Missing
from bench_prep.settings import RunSettings


@pytest.mark.parametrize(
    "sizes",
    [
        {"position": 10**9, "max_model_len": 10**9 + 1000},
        {"max_model_len": 10**30},
        {"max_num_reqs": 10**9, "max_num_tokens": 10**9},
        {"max_num_tokens": 10**12},
        {"max_model_len": 10**6, "max_num_reqs": 4096, "block_sizes": "1," * 99 + "1"},
    ],
)
def test_sizes_that_no_machine_has(sizes: dict[str, object]) -> None:
    with pytest.raises(Missing, match=r"need about [\d,]+ GiB of memory, and \d+\.\d are free"):
        require_runners_memory(RunSettings.model_validate(sizes))


def test_sizes_that_people_have() -> None:
    require_runners_memory(RunSettings())
    require_engines_memory(2**20)


@pytest.mark.parametrize(
    "command",
    [
        "run --position 1000000000 --max-model-len 1000000002",
        "run --no-build --max-num-tokens 1000000000000",
        "engine LlamaForCausalLM --prompt-tokens 1000000000 --max-model-len 1000000002",
        "steps LlamaForCausalLM --max-model-len 1000000002",
        "serve LlamaForCausalLM --max-model-len 1000000002",
        "run --block-sizes 1000000000000000000000,16",
    ],
)
def test_the_commands_say_it_in_one_line(command: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "bench_prep", *command.split(), "--device", "cpu"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (2, 6), done
    assert len(done.stderr.splitlines()) == 2 and "launch" not in done.stdout
    assert "GiB of memory" in done.stderr or "block" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "code",
    [
        "raise MemoryError('no more')",
        "import numpy; numpy.ones(10**15)",
        "import torch; torch.ones(10**15)",
        "import torch; raise torch.OutOfMemoryError('no more\\nand so on')",
    ],
)
def test_memory_that_ends_later_is_no_fault_of_ours(code: str, tmp_path: Path) -> None:
    with (
        pytest.raises(Missing) as error,
        launched("tests.child.works", {"code": code}, {}, tmp_path / "log") as child,
    ):
        list(child.events())
    assert "\n" not in error.value.message

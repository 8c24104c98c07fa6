"""Alternating stretches inside a worker: whole rounds, of the right steps, on equal states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from bench_prep.settings import RunSettings

SETTINGS = RunSettings(
    position=100, max_model_len=512, max_num_reqs=4, max_num_tokens=64, block_sizes=(16, 32)
)


@pytest.mark.vllm
def test_rounds_alternate_and_the_states_stay_equal() -> None:
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.engine.stretches import Stretches
    from bench_prep.fastpath.preparer import FastPath
    from bench_prep.measure.state import read_state
    from bench_prep.measure.watch import Watch
    from bench_prep.snapshot import first_difference

    baseline, runner = make_runners(SETTINGS, 2)
    path = FastPath(runner)
    stretches = Stretches(path, warmup=3, iters=5, watch=Watch(read_state))
    work = Workload.make(SETTINGS, runner.inputs_embeds_size, runner.dtype)
    twins = [
        Decoder(baseline, work, baseline._prepare_inputs),
        Decoder(runner, work, stretches),
    ]
    for twin in twins:
        twin.reserve_tokens(100)
        twin.restart()
    tracked = []
    for _ in range(3 * 27):
        results = [twin.step() for twin in twins]
        state = [(twin.runner, result) for twin, result in zip(twins, results, strict=True)]
        assert first_difference(*state) is None
        table: Any = runner.input_batch.block_table[0]
        tracked.append("commit_block_table" in vars(table))
    rounds = stretches.finished()
    stretches.close()
    assert len(rounds) == 3  # of three stretches of nine steps: a step's time needs the next one
    assert len(stretches.spans) == 3
    for one in rounds:
        assert [block.arm for block in one.blocks] == [
            "baseline_before",
            "candidate",
            "baseline_after",
        ]
        for block in one.blocks:
            assert {clock: len(times) for clock, times in block.samples.items()} == {
                "host": 5,
                "step": 5,
            }
            assert all(s > h for s, h in zip(*reversed(block.samples.values()), strict=True))
    assert path.dispatched == 3 * 9
    assert not path.fallbacks
    # While vLLM's own path is timed, its commits are vLLM's own.
    assert sum(tracked) == 3 * 9


@pytest.mark.gpu
def test_the_command(tmp_path: Path) -> None:
    from bench_prep.cli.app import app

    output = tmp_path / "engine.csv"
    arguments = ["engine", "Qwen2ForCausalLM", "--prompt-tokens", "100", "--max-model-len", "1024"]
    done = CliRunner().invoke(app, [*arguments, "--rounds", "7", "--output", str(output)])
    assert done.exit_code in (0, 4), done.output
    frame = pd.read_csv(output)
    assert list(frame["clock"]) == ["host", "step"]
    assert frame["equal"].all()
    assert (frame["machine_state"].str.len() > 0).all()

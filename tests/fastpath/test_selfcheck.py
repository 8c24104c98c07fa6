"""The self-check: silent while both paths agree, and the end of the fast path when they do not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bench_prep.settings import RunSettings

pytestmark = pytest.mark.vllm
SETTINGS = RunSettings(
    position=100, max_model_len=256, max_num_reqs=4, max_num_tokens=64, block_sizes=(16, 32)
)


class Planted:
    """The runner's own writer, and after the given step one wrong number."""

    def __init__(self, writer: Any, plant: Any, at: int) -> None:
        self._writer, self._plant, self._at = writer, plant, at

    def write_fixed(self) -> None:
        self._writer.write_fixed()

    def write(self, position: int, *arguments: Any) -> None:
        self._writer.write(position, *arguments)
        if position == self._at:
            self._plant()


@pytest.fixture
def both() -> Any:
    """vLLM's own path, and the checked fast path: twins, the checked path and the runner."""
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload
    from bench_prep.fastpath.preparer import FastPath
    from bench_prep.fastpath.selfcheck import SelfCheck

    baseline, runner = make_runners(SETTINGS, 2)
    path = FastPath(runner)
    work = Workload.make(SETTINGS, runner.inputs_embeds_size, runner.dtype)
    decoders = [
        Decoder(baseline, work, baseline._prepare_inputs),
        Decoder(runner, work, SelfCheck(path, runner, 3)),
    ]
    for decoder in decoders:
        decoder.reserve_tokens(200)
        decoder.restart()
    return decoders, path, runner


def steps(decoders: list[Any], count: int) -> None:
    from bench_prep.snapshot import first_difference

    for _ in range(count):
        results = [decoder.step() for decoder in decoders]
        difference = first_difference(
            (decoders[0].runner, results[0]), (decoders[1].runner, results[1])
        )
        assert difference is None, difference


def test_every_third_dispatched_step_is_checked(both: Any) -> None:
    decoders, path, _ = both
    steps(decoders, 90)
    assert path.closed is None
    assert path.dispatched == 90
    assert path.counters.checked == 30


@pytest.mark.parametrize(
    ("buffer", "plant"),
    [
        ("slot_mapping", lambda r: r.input_batch.block_table[1].slot_mapping.gpu[:1].add_(1)),
        ("block_table", lambda r: r.input_batch.block_table[0].block_table.gpu[0, :1].add_(1)),
        ("seq_lens", lambda r: r.seq_lens[2:3].add_(1)),
        # Not written by either path: seen because the state before the step is put back.
        ("positions", lambda r: r.positions[7:8].add_(1)),
    ],
)
def test_a_difference_closes_the_fast_path_and_the_service_goes_on(
    both: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch, buffer: str, plant: Any
) -> None:
    decoders, path, runner = both
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    path.use(Planted(path._writer, lambda: plant(runner), at=105))  # the sixth step
    steps(decoders, 90)  # the state stays that of the twin: vLLM's own result is kept
    assert path.dispatched == 6
    assert path.counters.checked == 2
    assert path.closed is not None and buffer in path.closed, path.closed
    assert path.fallbacks["closed for this process"] == 84
    (error,) = {r.getMessage() for r in caplog.records if r.levelno == logging.ERROR}
    assert buffer in error and "expected" in error and "found" in error


def test_an_exception_closes_the_fast_path_too(both: Any) -> None:
    decoders, path, _ = both

    def fail() -> None:
        raise RuntimeError("planted")

    path.use(Planted(path._writer, fail, at=104))
    steps(decoders, 60)
    assert path.closed == "RuntimeError: planted"
    assert path.dispatched == 4
    path.use(path._writer)  # its block tables are not tracked any more
    steps(decoders, 3)
    assert path.dispatched == 4


def test_a_check_that_fails_itself_closes_the_fast_path_too(
    both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench_prep.fastpath.selfcheck import SelfCheck

    decoders, path, _ = both

    def no_memory(*_: Any) -> None:
        raise MemoryError("no memory for the copies")

    steps(decoders, 4)
    monkeypatch.setattr(SelfCheck, "_put_back", no_memory)
    steps(decoders, 20)
    assert path.closed == "a self-check failed (MemoryError: no memory for the copies)"
    assert path.dispatched == 6

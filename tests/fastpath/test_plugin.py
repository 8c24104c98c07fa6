"""What vLLM calls: the fast path attached to a worker's runner, or vLLM left as it is."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest

from bench_prep.fastpath import plugin
from bench_prep.settings import RunSettings

pytestmark = pytest.mark.vllm
SETTINGS = RunSettings(
    position=100, max_model_len=256, max_num_reqs=4, max_num_tokens=64, block_sizes=(16,)
)


@pytest.fixture(scope="module")
def made() -> Any:
    from bench_prep.decode.runner import make_runners

    return make_runners(SETTINGS, 1)[0]


@pytest.fixture
def runner(made: Any) -> Any:
    before = dict(vars(made))
    yield made
    path = vars(made).get("_prepare_inputs")
    if path is not None:
        path.detach()
    vars(made).clear()
    vars(made).update(before)
    del path
    gc.collect()  # its last summary belongs to no other test


@pytest.fixture
def log(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, logger="vllm.bench_prep")
    return caplog


def attach(runner: Any) -> None:
    plugin.attach_to_worker(SimpleNamespace(model_runner=runner))


def untouched(runner: Any) -> bool:
    table = runner.input_batch.block_table[0]
    names = {"_prepare_inputs", "_dummy_run", "_bench_prep"} & set(vars(runner))
    return not names and "commit_block_table" not in vars(table)


def test_vllm_finds_it() -> None:
    (found,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "bench_prep"]
    assert found.load() is plugin.register


def test_it_imports_no_worker_and_wraps_it_once() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from bench_prep.fastpath.plugin import register; register(); register();"
            "assert not [m for m in sys.modules if m.partition('.')[0] in ('vllm', 'triton')];"
            "import vllm.v1.worker.worker_base as w; own = w.WorkerWrapperBase;"
            "f = own.initialize_from_config; assert f._bench_prep;"
            "assert not hasattr(f.__wrapped__, '_bench_prep'); register();"
            "assert own.initialize_from_config is f",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_runner_gets_the_fast_path(runner: Any, log: Any) -> None:
    from bench_prep.fastpath.preparer import FastPath

    attach(runner)
    assert isinstance(runner._prepare_inputs, FastPath)
    (record,) = log.records
    assert record.getMessage().startswith(
        f"[bench-prep] fast path reserved: vLLM {__import__('vllm').__version__}, "
        f"Qwen2ForCausalLM on {runner.device}, KV groups: 1, in "
    )


def test_attached_again_there_is_one_fast_path(runner: Any) -> None:
    attach(runner)
    first = runner._prepare_inputs
    attach(runner)
    second = runner._prepare_inputs
    assert second is not first
    assert second.own_path == first.own_path
    table = runner.input_batch.block_table[0]
    assert table.commit_block_table.__self__ is second._tables[0]


def test_what_another_program_put_there_stays(runner: Any, log: Any) -> None:
    attach(runner)
    path = runner._prepare_inputs

    def mine(*args: Any) -> Any:
        return path(*args)

    runner._prepare_inputs = mine
    attach(runner)
    assert runner._prepare_inputs is mine
    assert path.closed == "replaced preparation"
    assert (
        log.records[-1]
        .getMessage()
        .startswith("[bench-prep] fast path not used: replaced preparation")
    )
    attach(runner)
    assert runner._prepare_inputs is mine
    del runner._prepare_inputs


def test_a_dummy_run_makes_everything_be_written_anew(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(runner)
    # A whole one needs a model.
    path = runner._prepare_inputs
    path.detach()
    runner._dummy_run = lambda: "done"
    path.track()
    path = runner._prepare_inputs
    for table in path._tables:
        table.dirty = False
    path._marks.fixed, path._marks.stale = True, False
    assert runner._dummy_run() == "done"
    assert all(table.dirty for table in path._tables)
    assert path._marks.stale and not path._marks.fixed


@pytest.mark.parametrize("value", ["0", "false", "Off", " no "])
def test_turned_off(runner: Any, log: Any, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BENCH_PREP_FASTPATH", value)
    attach(runner)
    assert untouched(runner)
    assert log.records[-1].getMessage() == (
        "[bench-prep] fast path not used: turned off by BENCH_PREP_FASTPATH"
    )


def test_a_closed_gate_is_said_once_with_its_reason(runner: Any, log: Any) -> None:
    runner.lora_config = object()
    attach(runner)
    assert untouched(runner)
    (record,) = log.records
    assert record.getMessage().startswith("[bench-prep] fast path not used: LoRA:")


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: vars(r).pop("model_config"),  # the service gate fails
        lambda r: setattr(r, "seq_lens", r.seq_lens.to("meta")),  # the set-up fails half-way
    ],
)
def test_a_failing_set_up_leaves_vllm_as_it_is(runner: Any, log: Any, damage: Any) -> None:
    damage(runner)
    attach(runner)
    assert untouched(runner)
    (record,) = log.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("[bench-prep] fast path not used: its set-up failed (")


@pytest.mark.parametrize("name", ["BENCH_PREP_SELFCHECK", "BENCH_PREP_SUMMARY_SECONDS"])
def test_a_wrong_setting_is_said(
    runner: Any, log: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "often")
    attach(runner)
    assert untouched(runner)
    assert f"{name}=often" in log.records[-1].getMessage()


def test_no_thread_no_fast_path(runner: Any, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", full)
    attach(runner)
    assert untouched(runner)
    assert "can't start new thread" in log.records[-1].getMessage()


def test_another_runner_is_not_supported_and_says_so(log: Any) -> None:
    plugin.attach_to_worker(SimpleNamespace())
    assert "fast path not used" in log.records[-1].getMessage()


def test_a_preparation_that_something_else_put_there_is_left_alone(runner: Any, log: Any) -> None:
    def other(*arguments: Any) -> Any:
        return type(runner)._prepare_inputs(runner, *arguments)

    runner._prepare_inputs = other
    try:
        attach(runner)
        assert runner._prepare_inputs is other
    finally:
        del runner._prepare_inputs
    assert "not used: replaced preparation" in log.records[-1].getMessage()


def test_turned_off_later_it_goes(runner: Any, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(runner)
    monkeypatch.setenv("BENCH_PREP_FASTPATH", "0")
    attach(runner)
    assert untouched(runner)


def test_a_damaged_wrapt_does_not_stop_vllm(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("wrapt.register_post_import_hook")
    plugin.register()
    assert "its set-up failed (AttributeError" in log.records[-1].getMessage()

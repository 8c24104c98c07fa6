"""What a server can do wrong: a clear message, no process left, and what was finished is kept."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from rich.console import Console

from bench_prep.engine.vllm.launch import engine_environment
from bench_prep.errors import BenchPrepError, Missing, OutputsDiffer, UsageError
from bench_prep.serve.command import Comparison
from bench_prep.serve.load import Load
from bench_prep.serve.processes import Client, Patience, client, served
from bench_prep.serve.store import TABLE, requests_path

pytestmark = pytest.mark.vllm

PATIENCE = Patience(start_s=60, stall_s=5)  # other tests run beside
BAD_SERVER = "tests.serve.bad_server"


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """vLLM's client, imported once for all tests."""
    log = tmp_path_factory.mktemp("client") / "client.log"
    with client(PATIENCE, engine_environment("cpu", fastpath=False), log) as one:
        one.ready()
        yield one


Run = Callable[..., tuple[int, pd.DataFrame, str]]


@pytest.fixture
def run(
    asking: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Comparison, Callable[[], int], io.StringIO]]:
    monkeypatch.setenv("BENCH_PREP_CACHE", str(tmp_path / "cache"))

    def made(fault: str, **load: Any) -> tuple[Comparison, Callable[[], int], io.StringIO]:
        model = tmp_path / "model"
        model.mkdir()
        (model / "fault").write_text(fault)
        (model / "config.json").write_text('{"vocab_size": 100}')
        shown = io.StringIO()
        given = {"tiers": "4-8", "requests": 2, "output_tokens": 12, "patience": PATIENCE} | load
        comparison = Comparison(
            Load("model", **given),
            "cpu",
            output=tmp_path / "serve.csv",
            command="bench-prep serve",
            console=Console(file=shown, width=200),
            server=BAD_SERVER,
        )
        comparison.run.environment = {"vllm_version": "0"}
        return comparison, lambda: comparison.in_turn(model, asking), shown

    return made


def test_the_client_need_not_wait_for_its_turn(asking: Client) -> None:
    """Otherwise whole answers arrive at once on busy cores: the real-time class, where allowed."""
    ask = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    if subprocess.run([sys.executable, "-c", ask], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("not allowed here")
    assert os.sched_getscheduler(asking._child._process.pid) == os.SCHED_RR


def children() -> list[psutil.Process]:
    """Servers that this process started and that are alive."""
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if BAD_SERVER in " ".join(one.cmdline())
    ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies at start", ["at its start", "exit code 3", "ValueError: no such model"]),
        ("dies", ["the server ended early, with exit code 9", "RuntimeError: out of memory"]),
        ("hangs", ["the server hangs", "no token for 5 s after 3 of 12"]),
        ("silent", ["did not answer for 5 s"]),
        ("answers 500", ["answered 500", "the engine is not well"]),
        ("closes the stream", ["the stream was closed early, after 3 of 12 tokens"]),
        ("error in the stream", ["an error: a request went wrong"]),
    ],
)
def test_a_fault_is_named_and_what_was_finished_is_kept(
    run: Any, tmp_path: Path, fault: str, said: list[str]
) -> None:
    _, work, _ = run(fault)
    with pytest.raises(Missing) as caught:
        work()
    for text in said:
        assert text in caught.value.message
    assert not children()
    frame = pd.read_csv(tmp_path / "serve.csv")
    assert tuple(frame.columns) == TABLE.names
    assert frame["partial"].all() and frame["verdict"].isna().all()
    assert (frame["baseline_before_tokens"] == 24).all() and frame["candidate_ms"].isna().all()
    assert said[0] in frame["problem"].iloc[0]


def test_a_server_that_is_never_ready_is_not_waited_for_for_ever(run: Any) -> None:
    _, work, _ = run("never ready", patience=Patience(start_s=3, stall_s=5))
    with pytest.raises(Missing, match="not ready after 3 s"):
        work()
    assert not children()


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("other token", "the warm-up request, output token 5: expected"),
        ("one token less", "the warm-up request: expected 12 tokens, found 11"),
    ],
)
def test_other_outputs_are_no_gain(run: Any, tmp_path: Path, fault: str, where: str) -> None:
    _, work, shown = run(fault)
    with pytest.raises(OutputsDiffer) as caught:
        work()
    assert where in caught.value.message and "TPOT" not in shown.getvalue()
    frame = pd.read_csv(tmp_path / "serve.csv")
    assert (frame["verdict"] == "different").all() and not frame["equal"].any()


def test_without_the_plugin_nothing_is_claimed(run: Any, tmp_path: Path) -> None:
    _, work, _ = run("no plugin", requests=10)
    with pytest.raises(Missing, match="no line of the plugin"):
        work()
    frame = pd.read_csv(tmp_path / "serve.csv")
    assert not frame["verdict"].isin(["faster"]).any() and frame["equal"].all()


def test_equal_servers(run: Any, tmp_path: Path) -> None:
    """The whole way, with a file of conversations of which one fits in no tier."""
    prompts = tmp_path / "prompts.jsonl"
    line = '{"messages": [{"role": "user", "content": "%s"}], "answer": "%s"}\n'
    texts = ["a bb ccc dddd", "a a a a a", "b b b b b b", "one"]
    prompts.write_text("".join(line % (text, "no") for text in texts))
    comparison, work, shown = run("", prompts=prompts, requests=5)
    assert work() == 4  # two requests are too few for a verdict
    frame = pd.read_csv(tmp_path / "serve.csv")
    assert list(frame["metric"]) == ["ttft", "tpot", "itl", "latency"]
    assert frame["equal"].all() and (frame["logprob_difference"] == 0).all()
    assert (frame["candidate_correct"] == 0).all()
    assert (frame["candidate_ms"] > 0).all() and not frame["partial"].any()
    for text in ("1 of 4 are in no tier", "identical, token by token", "Exact answers: 0 / 0 / 0"):
        assert text in shown.getvalue()
    kept = pd.read_json(requests_path(tmp_path / "serve.csv", comparison.run_id), lines=True)
    assert len(kept) == 9 and set(kept["arm"]) == set(comparison.run.arms)


def test_a_taken_port(run: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _, work, _ = run("", port=port)
        with pytest.raises(UsageError, match=f"port {port} cannot be used"):
            work()


def test_a_service_of_somebody_else(run: Any, asking: Client, tmp_path: Path) -> None:
    comparison, _, shown = run("")
    model, log = tmp_path / "model", tmp_path / "its.log"
    switch = {"BENCH_PREP_FASTPATH": "1"}
    with served([str(model)], switch, log, PATIENCE, module=BAD_SERVER) as service:
        assert comparison.alone(replace(service, log=None), model, asking) == 0
        assert comparison.alone(service, model, asking) == 0
        assert service.child is not None and service.child.poll() is None
    first, frame = (
        one
        for _, one in pd.read_csv(tmp_path / "serve.csv").groupby(
            "dispatched", dropna=False, sort=False
        )
    )
    for one in (first, frame):
        assert (one["candidate_ms"] > 0).all() and one["verdict"].isna().all()
        assert (one["url"] == service.url).all()
        # The client's own machine is another one.
        assert one[["vllm_version", "device_name", "fastpath_sha256"]].isna().all(axis=None)
    assert first["dispatched"].isna().all()
    # Of these requests alone: three, of which one twice, of 12 tokens.
    assert (frame["decode_steps"] == 44).all() and (frame["dispatched"] == 44).all()
    for text in ("not known whether it is used", "used: 44 of 44 decode steps", "TPOT"):
        assert text in shown.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, work, _ = run("")
    full = os.open("/dev/full", os.O_WRONLY)
    own = os.write

    def write(descriptor: int, data: Any) -> int:
        of_ours = str(tmp_path) in str(Path(f"/proc/self/fd/{descriptor}").readlink())
        return own(full if of_ours else descriptor, data)

    monkeypatch.setattr(os, "write", write)
    try:
        with pytest.raises(BenchPrepError, match="no space left") as caught:
            work()
    finally:
        os.close(full)
    assert caught.value.exit_code == 6 and not list(tmp_path.glob("*.csv"))
    assert not children()


def test_an_interrupted_run_keeps_what_was_finished(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, work, _ = run("")
    real = Comparison._arm

    def interrupted(self: Comparison, arm: str, *given: Any) -> None:
        if arm == "candidate":
            raise KeyboardInterrupt
        real(self, arm, *given)

    monkeypatch.setattr(Comparison, "_arm", interrupted)
    with pytest.raises(BenchPrepError, match="1 of 3 servers were finished") as caught:
        work()
    assert caught.value.exit_code == 130
    assert pd.read_csv(tmp_path / "serve.csv")["problem"].eq("interrupted").all()

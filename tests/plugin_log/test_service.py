"""A real `vllm serve` process: what it leaves in its log when it is ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench_prep.child.device import has_device
from bench_prep.decode.model import write_model_folder
from bench_prep.plugin_log.logs import read_logs
from bench_prep.plugin_log.usage import usage_in

TOKENS = 60


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """A tiny model with random weights on the CPU, its address and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = tmp_path / "model"
    model.mkdir()
    write_model_folder(model, max_model_len=2048, mrope=False)
    log = tmp_path / "service.log"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"},
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"),
        *("--max-model-len", "2048", "--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", "model"),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process, f"http://127.0.0.1:{port}", log
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(reached: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 1200
    while not reached():
        text = log.read_text(errors="replace")
        assert process.poll() is None and time.monotonic() < end, text
        time.sleep(0.2)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=60):
            return True
    except OSError:
        return False


def complete(address: str) -> dict[str, Any]:
    """The answer to a prompt of token numbers: there is no tokenizer."""
    body = {
        "model": "model",
        "prompt": [1, 2, 3, 4],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "detokenize": False,
    }
    request = urllib.request.Request(
        f"{address}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(has_device(), reason="serves on the CPU")
def test_every_step_of_a_service_is_counted_when_it_is_ended(
    service: tuple[subprocess.Popen[bytes], str, Path],
) -> None:
    process, address, log = service
    wait_until(lambda: answers(address), process, log)
    for _ in range(2):
        assert complete(address)["usage"]["completion_tokens"] == TOKENS
    # vLLM kills its worker in the instant in which the server ends, so the pause must do.
    time.sleep(5)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    usage = usage_in(read_logs([log]))
    assert usage is not None, log.read_text(errors="replace")
    # The first token of a request comes from its prompt, which is no decode step.
    assert usage.decode_steps == 2 * (TOKENS - 1), log.read_text(errors="replace")
    assert usage.dispatched == usage.decode_steps
    assert (usage.processes, usage.without_summary) == (1, 0)
    assert not usage.differences and not usage.failures

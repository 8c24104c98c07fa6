"""Bad input: the right exit code and a remedy, before any server starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench_prep.cli.app import app
from bench_prep.errors import BenchPrepError

MODEL = "LlamaForCausalLM"
RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([MODEL, "--tiers", "8-4"], 2, "'8-4' is no tier"),
        ([MODEL, "--output-tokens", "1"], 2, "--output-tokens"),
        ([MODEL, "--log", "x.log"], 2, "--url"),
        ([MODEL, "--output", "no/such/folder/a.csv"], 2, "does not exist"),
        (
            [MODEL, "--output", "other.csv"],
            2,
            "has another schema: expected schema 2 of bench-prep serve",
        ),
        ([MODEL, "--prompts", "none.jsonl"], 2, "none.jsonl cannot be read"),
        ([MODEL, "--prompts", "other.csv"], 2, "line 1: no JSON"),
        ([MODEL, "--prompts", "good.jsonl"], 2, "LlamaForCausalLM has no tokenizer"),
        ([MODEL, "--predicted", "none.csv"], 2, "none.csv"),
        ([MODEL, "--predicted", f"{RESULTS}/serve-h200-0.26.0.csv"], 2, "is of bench-prep serve"),
        ([MODEL, "--predicted", f"{RESULTS}/against-0.32.0.csv"], 2, "is not of the fast path"),
        ([MODEL, "--predicted", "x.csv", "--url", "http://x"], 2, "nothing is compared"),
        ([MODEL, "--serve-args", "'"], 2, "--serve-args cannot be read"),
        (["other.csv"], 2, "config.json cannot be used"),
        ([MODEL, "--weights"], 2, "no folder with *.safetensors"),
        (["NoSuchForCausalLM"], 2, "NoSuchForCausalLM is no model folder"),
        ([MODEL, "--url", "http://127.0.0.1:9"], 6, "is not ready"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.csv").write_text("a,b\n1,2\n")
    Path("good.jsonl").write_text('{"messages": [{"role": "user", "content": "u"}]}\n')
    done = CliRunner().invoke(app, ["serve", "--device", "cpu", *arguments])
    if isinstance(done.exception, BenchPrepError):
        assert done.exception.exit_code == code and done.exception.remedy
        assert text in f"{done.exception.message} {done.exception.remedy}"
    else:
        assert done.exit_code == code and text in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"other.csv", "good.jsonl"}


def test_a_taken_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(app, ["serve", MODEL, "--device", "cpu", "--port", port])
    assert isinstance(done.exception, BenchPrepError) and done.exception.exit_code == 2
    assert f"port {port} cannot be used" in done.exception.message

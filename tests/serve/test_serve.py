"""The whole service, A/B/A: real `vllm serve` processes of a tiny model, vLLM's own client."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from bench_prep.child.device import has_device
from bench_prep.cli.app import app
from bench_prep.serve.store import TABLE, requests_path
from tests.serve.counting_model import counted, write_counting_model

pytestmark = pytest.mark.vllm

REQUESTS, TOKENS = 4, 40
PREDICTED = Path(__file__).parents[2] / "results" / "engine-h200-0.26.0.csv"


@pytest.mark.skipif(has_device(), reason="serves on the CPU")
def test_a_service_with_and_without_the_fast_path(tmp_path: Path) -> None:
    output = tmp_path / "serve.csv"
    arguments = ["LlamaForCausalLM", "--tiers", "30-60,100-300", "--requests", str(REQUESTS)]
    arguments += ["--output-tokens", str(TOKENS), "--serve-args", "--enforce-eager"]
    arguments += ["--device", "cpu", "--output", str(output), "--predicted", str(PREDICTED)]
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 4, done.output  # four requests are too few for a verdict
    frame = pd.read_csv(output)
    assert tuple(frame.columns) == TABLE.names
    assert list(frame["tier"]) == ["30-60"] * 4 + ["100-300"] * 4
    assert frame["equal"].all() and (frame["verdict"] == "inconclusive").all()
    # Of another path's sums the last bits would differ.
    assert (frame["logprob_difference"] == 0).all()
    # The warm-up request is sent twice; the first token is the prompt's.
    assert (frame["decode_steps"] == 2 * (REQUESTS + 2) * (TOKENS - 1)).all()
    assert (frame["dispatched"] == frame["decode_steps"]).all() and frame["not_used"].isna().all()
    for arm in ("baseline_before", "candidate", "baseline_after"):
        assert (frame[f"{arm}_tokens"] == REQUESTS * TOKENS).all()
        assert (frame[f"{arm}_ms"] > 0).all()
    kept = requests_path(output, frame["run"].iloc[0])
    requests = pd.read_json(kept, lines=True)
    assert len(requests) == 3 * 2 * (REQUESTS + 1)
    # Random weights under which outputs vary: equal ones say something.
    assert all(len(set(tokens)) > TOKENS / 4 for tokens in requests["tokens"])
    said = " ".join(done.output.split())
    assert "identical, token by token; log-probabilities of the warm-up's answer are" in said
    # That engine was on another machine.
    assert "not comparable: it is of NVIDIA H200 and vLLM 0.26.0" in said
    tpot = frame[frame["metric"] == "tpot"]
    assert tpot["predicted_ms"].isna().all()
    assert tpot["prediction"].str.startswith("not comparable").all()


@pytest.mark.slow
@pytest.mark.skipif(has_device(), reason="serves on the CPU")
def test_a_file_of_prompts_with_a_tokenizer_and_answers(tmp_path: Path) -> None:
    model = tmp_path / "model"
    tokenizer = write_counting_model(model)
    texts = ["the quick brown fox", "one two three", "the lazy dog", "seven five", "fox jumps"]
    lines: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": text}], "answer": counted(tokenizer, text, 30)}
        for text in texts
    ]
    lines[2]["answer"] = "another"
    shared = [{"from": "human", "value": "one two three four"}, {"from": "gpt", "value": "five"}]
    lines.append({"conversations": shared})
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "serve.csv"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = [str(model), "--weights", "--prompts", str(prompts), "--output-tokens", "30"]
    arguments += ["--serve-args", "--enforce-eager", "--device", "cpu", "--output", str(output)]
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 4, done.output  # five requests are too few for a verdict
    frame = pd.read_csv(output)
    assert frame["equal"].all() and (frame["dispatched"] > 0).all()
    for arm in ("baseline_before", "candidate", "baseline_after"):
        assert (frame[f"{arm}_correct"] == 3).all()  # the first one is the warm-up
    assert "Exact answers: 3 / 3 / 3 requests." in done.output
    kept = pd.read_json(requests_path(output, frame["run"].iloc[0]), lines=True)
    ended = kept[kept["finish"] == "stop"]
    assert 0 < len(ended) < len(kept) and ended["tokens"].map(len).max() < 30

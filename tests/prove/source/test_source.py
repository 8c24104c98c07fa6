"""The command `prove source`, and how an unknown source becomes a known one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench_prep.cli.app import app
from bench_prep.errors import Inconclusive, Missing, UsageError
from bench_prep.files import check_replaceable, write_json
from bench_prep.prove.source import command as source
from bench_prep.prove.source.command import LEAST_DISPATCHED, _add
from bench_prep.prove.source.events import Begun, Proven
from bench_prep.stages import Stages


def _prove(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["prove", "source", *arguments])


@pytest.mark.vllm
def test_a_short_proof_is_written(tmp_path: Path) -> None:
    output = tmp_path / "proof.json"
    result = _prove("--steps", "200", "--seed", "5", "--output", str(output))
    assert result.exit_code == 0, result.output
    assert "seed     5" in result.output
    assert "whole state identical" in result.output
    proof = json.loads(output.read_text(encoding="utf-8"))
    assert proof["seed"] == 5
    assert proof["steps"] >= 200
    assert proof["dispatched"] + sum(proof["fallbacks"].values()) == proof["steps"]
    assert proof["differences"] == 0
    assert proof["coverage"]["step"] > 100
    assert len(proof["fingerprint"]) == len(proof["fastpath_sha256"]) == 64
    assert proof["vllm_version"] and proof["platform"] and proof["device_name"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "{tmp}"], "is not an ordinary file"),
        (["--output", "{tmp}/none/proof.json"], "cannot be written"),
        (["--output", "{tmp}/file/proof.json"], "cannot be written"),
    ],
)
def test_an_output_that_cannot_be_written(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = _prove(*(text.format(tmp=tmp_path) for text in arguments))
    assert isinstance(result.exception, UsageError)
    assert said in result.exception.message


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--steps", "x"], ["--seed", "-1"]])
def test_wrong_numbers(arguments: list[str]) -> None:
    assert _prove(*arguments).exit_code == 2


def test_files_are_whole_or_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    check_replaceable(path)
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def known_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "known.json"
    path.write_text(json.dumps({"devices": ["cpu"], "sources": {"old": {"vllm": "0.1.0"}}}))
    monkeypatch.setattr(source, "KNOWN_FILE", path)
    return path


def _watched(dispatched: int, missing: list[str], entry: Any) -> tuple[Begun, Proven]:
    return Begun({}, "new", [], True), Proven({"dispatched": dispatched}, missing, 1.0, entry)


ENTRY = {"vllm": "9.9.9", "platform": "cpu", "returns": 3, "parts": {}}


def test_a_proven_source_is_added(known_file: Path) -> None:
    stages = Stages(Console(file=io.StringIO()))
    _add(*_watched(LEAST_DISPATCHED, [], ENTRY), stages)
    assert json.loads(known_file.read_text()) == {
        "devices": ["cpu"],
        "sources": {"old": {"vllm": "0.1.0"}, "new": ENTRY},
    }
    assert str(known_file) in stages.console.file.getvalue().replace("\n", "")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dispatched", "missing", "said"),
    [
        (LEAST_DISPATCHED - 1, [], "were by the fast path"),
        (LEAST_DISPATCHED, ["preempt"], "preempt"),
    ],
)
def test_a_source_of_which_too_little_is_proven_is_not_added(
    dispatched: int, missing: list[str], said: str, known_file: Path
) -> None:
    before = known_file.read_text()
    with pytest.raises(Inconclusive, match=said):
        _add(*_watched(dispatched, missing, ENTRY), Stages(Console(file=io.StringIO())))
    assert known_file.read_text() == before


@pytest.mark.vllm
def test_an_unknown_source_is_admitted_only_to_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench_prep.decode.runner import make_runners
    from bench_prep.fastpath.fingerprint import fingerprint, known
    from bench_prep.prove.source.process import _served
    from bench_prep.prove.source.variants import variants

    runner = make_runners(variants()[0].settings(), 1)[0]
    assert _served(runner, "0.0.0", add=True) is None
    digest = fingerprint(type(runner), runner.device.type)
    own = known()["sources"][digest]
    monkeypatch.setitem(known(), "sources", {})
    with pytest.raises(Missing, match="unknown runner source") as raised:
        _served(runner, "0.0.0", add=False)
    assert "--add" in raised.value.remedy
    assert _served(runner, f"{own['vllm']}+cpu", add=True) == own
    assert known()["sources"] == {digest: own}

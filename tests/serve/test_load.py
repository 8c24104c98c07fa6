"""The model's folder: one place for one content, so that vLLM finds what it compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench_prep.serve.load import Load


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCH_PREP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def made(scratch: Path, **load: object) -> Path:
    scratch.mkdir()
    one = Load("LlamaForCausalLM", **load)  # type: ignore[arg-type]
    return one.kept(one.folder(scratch))


def test_one_place_for_one_model(tmp_path: Path, kept: Path) -> None:
    first = made(tmp_path / "a")
    assert made(tmp_path / "b") == first and first.parent == kept
    config = json.loads((first / "config.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(config | {"vocab_size": 300}))
    (tmp_path / "c").mkdir()
    other = Load(str(tmp_path / "other.json"))
    assert other.kept(other.folder(tmp_path / "c")) != first
    assert len(list(kept.iterdir())) == 2  # and nothing half made


def test_a_damaged_one_is_made_anew(tmp_path: Path, kept: Path) -> None:
    first = made(tmp_path / "a")
    whole = (first / "config.json").read_bytes()
    (first / "config.json").write_text("{}")
    assert made(tmp_path / "b") == first
    assert (first / "config.json").read_bytes() == whole


def test_a_model_with_weights_stays_where_it_is(tmp_path: Path, kept: Path) -> None:
    assert Load("x", weights=True).kept(tmp_path) == tmp_path and not kept.exists()

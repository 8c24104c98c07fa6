"""A worktree that the fast path cannot serve is refused before anything is built."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from pathlib import Path

import pytest

from bench_prep.candidate.served_source import RUNNERS, require_served, source_texts
from bench_prep.child.device import is_cpu
from bench_prep.errors import Missing
from bench_prep.settings import RunSettings

pytestmark = pytest.mark.vllm
PLATFORM = "cpu" if is_cpu("auto") else "cuda"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"


def installed() -> Path:
    """The folder in which the installed vLLM lies as in a worktree."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


def copied(tmp_path: Path) -> Path:
    """A worktree with the files that are looked at."""
    for name in (
        *("v1/worker/gpu_model_runner", "v1/worker/cpu_model_runner", "v1/worker/block_table"),
        *("v1/worker/gpu_input_batch", "v1/utils", "utils/cpu_triton_utils"),
        "model_executor/layers/rotary_embedding/mrope",
    ):
        source, target = (root / f"vllm/{name}.py" for root in (installed(), tmp_path))
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_texts_are_those_of_the_imported_sources() -> None:
    from bench_prep.fastpath.fingerprint import part_hashes, short_hashes

    module, _, name = RUNNERS[PLATFORM].partition(":")
    expected = part_hashes(getattr(importlib.import_module(module), name), PLATFORM)
    found = short_hashes(source_texts(installed(), PLATFORM))
    assert found == {name: expected[name] for name in found}
    assert {"_prepare_inputs", "_update_states", "vllm.v1.worker.block_table"} < found.keys()


def test_a_known_source_is_served(tmp_path: Path) -> None:
    require_served(installed(), RunSettings())
    require_served(copied(tmp_path), RunSettings())


def test_an_edited_method_is_refused(tmp_path: Path) -> None:
    edit(copied(tmp_path) / RUNNER, "num_reqs = self.input_batch.num_reqs\n", "num_reqs = 1\n")
    with pytest.raises(Missing, match=r"worktree: .*_prepare_inputs.* not vLLM \d") as caught:
        require_served(tmp_path, RunSettings())
    assert "--against" in caught.value.remedy
    require_served(tmp_path, RunSettings(candidate="mine.py:attach"))
    require_served(None, RunSettings())


def test_edits_elsewhere_do_not_matter(tmp_path: Path) -> None:
    runner = copied(tmp_path) / RUNNER
    runner.write_text("# a comment\n" + runner.read_text() + "\n\ndef more() -> None: ...\n")
    require_served(tmp_path, RunSettings())


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("block_table", "\n", ""),
        ("gpu_model_runner", "class GPUModelRunner(", "# \x0c \u2028\nclass GPUModelRunner("),
        ("gpu_input_batch", "@dataclass\n", "@dataclass(\n    eq=True,\n)\n"),
        ("gpu_model_runner", "def _prepare_inputs", "@decorated\n    def _prepare_inputs"),
        ("cpu_model_runner", "(GPUModelRunner)", "(Mine, GPUModelRunner)"),
    ],
)
def test_nothing_is_said_of_what_is_not_sure(tmp_path: Path, name: str, old: str, new: str) -> None:
    """Lines as Python counts them; decorated or inherited, a runner may have any text."""
    path = copied(tmp_path) / f"vllm/v1/worker/{name}.py"
    if not path.exists():
        pytest.skip("no CPU runner here")
    before, _, after = path.read_text().rpartition(old)
    path.write_text(before + new + after)
    require_served(tmp_path, RunSettings())


def test_nothing_is_said_of_what_is_not_found(tmp_path: Path) -> None:
    require_served(tmp_path, RunSettings())
    runner = copied(tmp_path) / RUNNER
    for text in ("this is not Python", "x = " + "1 + " * 20_000 + "1", "x = " + "-" * 20_000 + "1"):
        runner.write_text(text)
        require_served(tmp_path, RunSettings())

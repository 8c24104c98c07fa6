"""What a dispatched step need not write again is written anew after any other writer."""

from __future__ import annotations

from typing import Any

import pytest

from bench_prep.errors import OutputsDiffer
from bench_prep.fastpath.block_tables import Marks
from bench_prep.fastpath.gates import SAMPLED_TOKEN_KIND
from bench_prep.settings import RunSettings
from tests.fastpath.removal import remove_step_condition

pytestmark = pytest.mark.vllm
SETTINGS = RunSettings(
    position=100, max_model_len=256, max_num_reqs=4, max_num_tokens=64, block_sizes=(16,)
)


class AlwaysFixed(Marks):
    """Once true, `fixed` stays true: as if nothing invalidated it."""

    __slots__ = ()

    def written(self) -> None:
        self.stale = True


def alone_then_two_then_alone(invalidated: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    from bench_prep.decode.runner import make_runners
    from bench_prep.fastpath import preparer
    from bench_prep.fastpath.preparer import FastPath
    from bench_prep.prove.source.twins import Twins

    if not invalidated:
        monkeypatch.setattr(preparer, "Marks", AlwaysFixed)
    baseline, runner = make_runners(SETTINGS, 2)
    path = FastPath(runner)
    twins = Twins(baseline, runner, path, SETTINGS.block_sizes)
    twins.arrive(20)
    for _ in range(5):
        twins.step()
    second = twins.arrive(20)
    for _ in range(5):
        twins.step()
    twins.finish(second)
    for _ in range(5):
        twins.step()
    return path


def test_vllm_s_own_path_invalidates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    path = alone_then_two_then_alone(True, monkeypatch)
    assert path.dispatched >= 7


def test_without_that_the_twins_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a device the sampled tokens of several requests leave the next step to vLLM's own path.
    remove_step_condition(monkeypatch, SAMPLED_TOKEN_KIND)
    with pytest.raises(OutputsDiffer):
        alone_then_two_then_alone(False, monkeypatch)

"""The points of a sweep in this process: what cannot exist, what is wrong, what is proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_prep.child.device import is_cpu
from bench_prep.errors import Missing, OutputsDiffer, UsageError
from bench_prep.settings import RunSettings
from bench_prep.sweep.axes import Point
from bench_prep.sweep.events import Ended, EqualAt, Lap, LeftOut
from bench_prep.sweep.laps import Budget

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = RunSettings(position=512, max_model_len=2048, max_num_reqs=4, max_num_tokens=64)

pytestmark = pytest.mark.vllm


def point(axis: str, value: int, **changed: Any) -> Point:
    return Point(axis, value, RunSettings(**TINY.model_dump() | changed))


@pytest.fixture(scope="module")
def first() -> Any:
    pytest.importorskip("vllm")
    if not is_cpu("auto"):
        pytest.skip("the sweep of a device has a process of its own")
    from bench_prep.decode.runner import make_runners

    return make_runners(TINY, 2)


GROUPS = [point("groups", 1, block_sizes=(16,)), point("groups", 2)]
REFUSED = point("block_size", 24, block_sizes=(24, 24))
HUGE = point("max_num_reqs", 10**8, max_num_reqs=10**8, max_num_tokens=10**8)


def swept(
    first: Any, points: list[Point], candidate: str = "bench_prep.fastpath:attach", **more: Any
) -> list[Any]:
    from bench_prep.sweep.trial import guarded, time_points

    reference = TINY.model_copy(update={"candidate": candidate, "seed": 11})
    points = [Point(p.axis, p.value, p.settings.model_copy(update={"candidate": candidate}))
              for p in points]  # fmt: skip
    told: list[Any] = []
    budget = Budget(more.get("budget_s", 6.0))
    guards = guarded(points, reference, first, budget, told.append)
    time_points(points, guards, reference, 0.1, budget, told.append)
    return told


def test_points_that_cannot_exist_are_left_out(first: Any) -> None:
    told = swept(first, [*GROUPS, REFUSED, HUGE], budget_s=8.0)
    reasons = {(e.axis, e.value): e.reason for e in told if isinstance(e, LeftOut)}
    assert "does not accept 24" in reasons["block_size", 24]
    assert "GiB of memory" in reasons["max_num_reqs", 10**8]
    assert set(reasons) == {("block_size", 24), ("max_num_reqs", 10**8)}
    equal = [(e.axis, e.value, e.steps) for e in told if isinstance(e, EqualAt)]
    assert equal == [("groups", 1, 3), ("groups", 2, 3)]
    rounds = [e for e in told if isinstance(e, Lap)]
    assert {e.value for e in rounds} == {1, 2}
    assert all(e.dispatched_pct == 100 for e in rounds)
    # The first set of slices is always checked, one step at its draw and one over poisoned outputs.
    assert all(e.drawn_steps >= 2 for e in rounds)
    assert isinstance(told[-1], Ended)


def test_a_wrong_candidate_is_named_with_its_point(first: Any) -> None:
    with pytest.raises(OutputsDiffer, match=r"^groups \d: outputs differ .*slot_mapping") as error:
        swept(first, GROUPS, f"{EXAMPLES}/wrong_slot.py:attach")
    assert "--seed 11 draws the same again" in error.value.remedy


def test_a_candidate_that_cannot_be_loaded(first: Any) -> None:
    with pytest.raises(UsageError, match="cannot be loaded"):
        swept(first, GROUPS, f"{EXAMPLES}/wrong_slot.py:missing")


def test_no_point_at_all(first: Any) -> None:
    with pytest.raises(Missing, match=r"no point .*does not accept 24"):
        swept(first, [REFUSED])
    with pytest.raises(Missing, match=r"no point .*no time was left"):
        swept(first, GROUPS, budget_s=0.0)


@pytest.mark.parametrize(
    ("position", "last", "sizes", "expected"),
    [
        (24576, 32766, (16, 16), [range(24575, 24578)]),
        (1000, 2046, (16, 1024), [range(991, 994), range(999, 1002)]),
        (1, 2046, (16,), [range(1, 3)]),
        (2046, 2046, (16,), [range(2031, 2034), range(2045, 2047)]),
    ],
)
def test_the_twins_cross_a_boundary_of_every_group(
    position: int, last: int, sizes: tuple[int, ...], expected: list[range]
) -> None:
    from bench_prep.sweep.trial import boundaries

    found = boundaries(position, last, sizes)
    assert found == expected
    walked = {step for part in found for step in part}
    assert position in walked and min(walked) >= 1 and max(walked) <= last
    for size in sizes:
        assert position < size or any(step % size == 0 for step in walked)

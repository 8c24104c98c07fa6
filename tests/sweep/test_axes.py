"""Which settings are swept."""

from __future__ import annotations

import pytest

from bench_prep.errors import UsageError
from bench_prep.settings import RunSettings
from bench_prep.sweep.axes import AXES, MOST_POINTS, names_of, points_of

REFERENCE = RunSettings(mrope=True, seed=5)
ENDS = {
    "position": (1024, 262144),
    "max_num_reqs": (1, 1024),
    "max_num_tokens": (512, 32768),
    "groups": (1, 16),
    "block_size": (16, 1024),
}


@pytest.mark.parametrize("points", [2, 3, 4, 5, MOST_POINTS])
@pytest.mark.parametrize("axis", AXES)
def test_an_axis_has_both_ends_and_rises(axis: str, points: int) -> None:
    values = AXES[axis].values(points)
    assert (values[0], values[-1]) == ENDS[axis]
    assert values == sorted(set(values)) and len(values) <= points
    assert len(values) == min(points, AXES[axis].last - AXES[axis].first + 1)


def test_one_axis_at_a_time() -> None:
    """All other settings are the reference's; the position needs a longer model at every point."""
    expected = {
        "position": {"position", "max_model_len"},
        "max_num_reqs": {"max_num_reqs"},
        "max_num_tokens": {"max_num_tokens"},
        "groups": {"block_sizes"},
        "block_size": {"block_sizes"},
    }
    points = points_of(AXES, 5, REFERENCE)
    for point in points:
        here, there = point.settings.model_dump(), REFERENCE.model_dump()
        assert {n for n in here if here[n] != there[n]} <= expected[point.axis]
    lengths = {p.settings.max_model_len for p in points if p.axis == "position"}
    assert len(lengths) == 1 and lengths.pop() > 262144 + 500
    sizes = {p.value: p.settings.block_sizes for p in points if p.axis in ("groups", "block_size")}
    assert sizes[8] == (16,) * 8 and sizes[1024] == (1024, 1024)


def test_positions_share_their_runners() -> None:
    shapes = {point.shape for point in points_of(("position",), 5, REFERENCE)}
    assert len(shapes) == 1
    assert len({point.shape for point in points_of(("groups",), 5, REFERENCE)}) == 5


def test_names() -> None:
    assert names_of(None) == tuple(AXES)
    assert names_of("groups, max-num-reqs,groups") == ("groups", "max_num_reqs")
    for text in ("colour", "", "groups,"):
        with pytest.raises(UsageError, match="--axes: there is no axis") as error:
            names_of(text)
        assert "position,max_num_reqs" in error.value.remedy

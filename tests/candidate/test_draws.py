"""Which slices and steps are checked: the same for every arm, and others with another seed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench_prep.candidate.draws import Draws, Slice

SIZES = (16, 32)


def slices(seed: int, count: int, steps: int = 50, arm: str = "candidate") -> list[Slice]:
    draws = Draws(seed, 1000, SIZES)
    return [draws.slice(arm, steps, 2) for _ in range(count)]


@given(st.integers(0, 2**32 - 1), st.integers(1, 300))
def test_some_of_every_sixteen_slices_are_checked(seed: int, steps: int) -> None:
    drawn = slices(seed, 64, steps)
    checked = [bool(one.due) for one in drawn]
    groups = [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16)]
    assert [sum(checked[first:last]) for first, last in groups] == [1] * len(groups)
    for one in drawn:
        assert len(one.due) in (0, 2)
        assert all(0 <= step < steps for step in one.due)
    assert len({one.seed for one in drawn}) == 64


def test_every_arm_gets_the_same() -> None:
    draws = Draws(7, 1000, SIZES)
    for _ in range(20):
        one, other = draws.slice("baseline_before", 50, 1), draws.slice("candidate", 50, 1)
        assert one == other == draws.slice("baseline_after", 50, 1)


def test_a_seed_repeats_a_run_and_another_one_does_not() -> None:
    assert slices(7, 32) == slices(7, 32)
    assert [one.due for one in slices(7, 32)] != [one.due for one in slices(8, 32)]


def test_half_of_the_checks_are_at_a_block_boundary() -> None:
    due = [step for seed in range(50) for one in slices(seed, 16) for step in one.due]
    at_boundary = sum((1000 + step) % 16 == 0 for step in due) / len(due)
    # 500 draws of 1/2 and, where any step may be drawn, 1/16 of the rest: 6 standard deviations.
    assert abs(at_boundary - (1 / 2 + 1 / 2 * 3 / 50)) < 6 * (0.25 / len(due)) ** 0.5
    assert {step % 16 for step in due} == set(range(16))


def test_later_slices_are_checked_and_looked_at_each_by_itself() -> None:
    drawn = slices(7, 16_000)[16:]
    for marked in ([bool(one.due) for one in drawn], [one.look for one in drawn]):
        after = [later for earlier, later in pairwise(marked) if earlier]
        for few in (marked, after):
            share = sum(few) / len(few)
            assert abs(share - 1 / 16) < 5 * (15 / 256 / len(few)) ** 0.5

"""The A/B/A plan, with arms that only note what is taken of them and how long it would take."""

from __future__ import annotations

import pytest

from bench_prep.measure import plan
from bench_prep.measure.plan import ROUNDS_IN_BUDGET, SLICE_S, Pace, Timing, find_pace
from bench_prep.measure.records import ARMS, CLOCKS, Arm, Round, Samples
from bench_prep.measure.statistics import block_medians_ms
from bench_prep.settings import Method


class Machine:
    """Takes slices in no real time: `step_s` timed and `other_s` untimed seconds a step."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, step_s: float = 0.001, other_s: float = 0.0005
    ) -> None:
        self.now = 0.0
        self.step_s, self.other_s = step_s, other_s
        self.taken: list[tuple[Arm, int, int]] = []
        monkeypatch.setattr(plan.time, "monotonic", lambda: self.now)

    def __call__(self, arm: Arm, warmup: int, iters: int) -> Samples:
        self.taken.append((arm, warmup, iters))
        self.now += (warmup + iters) * (self.step_s + self.other_s)
        first = len(self.taken) * 1000
        return {
            "host": [round(self.step_s * 1e9)] * iters,
            "ready": [first + i for i in range(iters)],
        }

    def rounds(self, method: Method) -> tuple[Timing, list[Round]]:
        timing = Timing(self, method)
        generated = timing.rounds()
        one = next(generated)
        self.taken = self.taken[-3 * (timing.slices or 0) :]  # without the pilot
        return timing, [one, *generated]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_round_is_baseline_candidate_baseline_in_interleaved_slices(machine: Machine) -> None:
    timing, (one,) = machine.rounds(Method(warmup=5, iters=25, rounds=1))
    assert timing.pace == Pace((9, 8, 8), 2)
    assert machine.taken == [(arm, 2, steps) for steps in (9, 8, 8) for arm in ARMS]
    assert tuple(block.arm for block in one.blocks) == ARMS
    assert [len(block.samples[clock]) for block in one.blocks for clock in ("host", "ready")] == (
        [25] * 6
    )
    # In the order of the steps, slice after slice, and no other arm's.
    firsts = [block.samples["ready"][0] for block in one.blocks]
    assert firsts == sorted(firsts)
    assert all(
        values == sorted(set(values))
        for block in one.blocks
        for values in block.samples.values()
        if values is not block.samples["host"]
    )


def test_the_published_block_is_kept_where_the_budget_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace = find_pace(Machine(monkeypatch, 100e-6, 50e-6), Method())
    assert pace.iters == 2000
    assert pace.warmup * len(pace.slices) >= 100
    assert max(pace.slices) * 100e-6 <= 2 * SLICE_S
    assert max(pace.slices) - min(pace.slices) <= 1


@pytest.mark.parametrize("step_s", [1e-6, 1e-3, 0.04, 1.0])
@pytest.mark.parametrize("budget_s", [5, 60])
def test_a_verdict_fits_into_the_budget(
    monkeypatch: pytest.MonkeyPatch, step_s: float, budget_s: float
) -> None:
    machine = Machine(monkeypatch, step_s, step_s / 2)
    pace = find_pace(machine, Method(budget_s=budget_s))
    round_s = 3 * pace.steps * step_s * 1.5
    assert 1 <= pace.iters <= 2000
    least_s = 3 * 2 * step_s * 1.5  # one step of each block, after one for warm-up
    assert round_s <= max(1.5 * budget_s / ROUNDS_IN_BUDGET, least_s)
    fixed = find_pace(machine, Method(budget_s=budget_s, rounds=3))
    assert fixed.iters == 2000, "a fixed plan is what was asked for"


def test_a_preempted_step_does_not_make_slices_of_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Preempted(Machine):
        def __call__(self, arm: Arm, warmup: int, iters: int) -> Samples:
            samples = super().__call__(arm, warmup, iters)
            if len(self.taken) == 5:
                self.now += 0.030
                samples["host"][0] += 30_000_000
            return samples

    pace = find_pace(Preempted(monkeypatch, 100e-6, 50e-6), Method())
    assert pace == find_pace(Machine(monkeypatch, 100e-6, 50e-6), Method())


def test_preempted_steps_are_in_no_median(monkeypatch: pytest.MonkeyPatch) -> None:
    class Preempted(Machine):
        def __call__(self, arm: Arm, warmup: int, iters: int) -> Samples:
            samples = super().__call__(arm, warmup, iters)
            for clock in CLOCKS[:2]:
                samples[clock][1::2] = [9_000_000] * (iters // 2)
            return samples | {"preempted": [step % 2 for step in range(iters)]}

    _, (one,) = Preempted(monkeypatch).rounds(Method(iters=20, warmup=0, rounds=1))
    assert not one.left_out
    assert block_medians_ms(one, "host") == (1.0, 1.0, 1.0)
    assert (
        find_pace(Preempted(monkeypatch), Method()).iters
        == find_pace(Machine(monkeypatch), Method()).iters
    )


def test_a_round_of_hardly_any_whole_steps_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crowded(Machine):
        def __call__(self, arm: Arm, warmup: int, iters: int) -> Samples:
            kept = 1 + iters // 2 if arm != "candidate" else iters // 5
            lost = [1] * (iters - kept) + [0] * kept
            return super().__call__(arm, warmup, iters) | {"preempted": lost}

    _, (one,) = Crowded(monkeypatch).rounds(Method(iters=20, warmup=0, rounds=1))
    assert one.left_out == "most steps were preempted in candidate"


def test_a_fixed_plan_has_its_rounds(machine: Machine) -> None:
    timing, rounds = machine.rounds(Method(iters=4, warmup=0, rounds=3))
    assert len(rounds) == 3
    assert timing.stopped_by == "rounds"


def test_rounds_are_given_as_soon_as_they_are_finished(machine: Machine) -> None:
    given = Timing(machine, Method(iters=4, warmup=0, rounds=3)).rounds()
    assert machine.taken == []
    next(given)
    taken = len(machine.taken)
    next(given)
    assert len(machine.taken) == taken + 3


def test_what_the_consumer_does_counts_against_the_budget_and_is_in_no_time(
    machine: Machine,
) -> None:
    timing = Timing(machine, Method(iters=4, warmup=0, budget_s=100))
    for one in timing.rounds():
        machine.now += 30
        assert set(one.blocks[0].samples["host"]) == {1_000_000}
    assert timing.stopped_by == "budget"
    assert 60 <= machine.now <= 100


def test_a_round_that_does_not_count_says_why(machine: Machine) -> None:
    reasons = iter(["compiled before the first round", "", "throttled", ""])
    timing = Timing(machine, Method(iters=4, warmup=0, rounds=3))
    rounds = list(timing.rounds(lambda: next(reasons)))
    assert [one.left_out for one in rounds] == ["", "throttled", ""]
    assert [Round.from_json(one.to_json()) for one in rounds] == rounds

"""Hypothesis looks for a trace after which the twins differ, and shortens what it finds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bench_prep.prove.source.operations import OPERATIONS, Operation
from bench_prep.prove.source.twins import Twins
from bench_prep.prove.source.variants import variants


class Traces(RuleBasedStateMachine):
    """One rule for each operation; each checks the whole state itself."""

    twins: Twins
    candidate: Any

    @initialize(data=st.data())
    def bring_up(self, data: Any) -> None:
        self.twins, self.candidate = data.draw(st.sampled_from(variants())).twins(seed=0)

    def teardown(self) -> None:
        # Having given up, it would be equal to vLLM's own path because it is that path.
        assert not hasattr(self, "candidate") or self.candidate.closed is None

    @rule(count=st.integers(1, 20))
    @precondition(lambda self: bool(self.twins.live))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.twins.step()


def _rule(operation: Operation) -> Any:
    @rule(data=st.data())
    @precondition(lambda self: operation.possible(self.twins))
    def apply(self: Traces, data: Any) -> None:
        operation.apply(self.twins, lambda low, high: data.draw(st.integers(low, high)))

    apply.__name__ = operation.name.replace(" ", "_").replace("-", "_")
    return apply


for _operation in OPERATIONS:
    setattr(Traces, _rule(_operation).__name__, _rule(_operation))


@pytest.mark.vllm
def test_no_trace_makes_the_twins_differ() -> None:
    run_state_machine_as_test(
        Traces,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )

"""Seeded random traces: the same operations in the same order for the same seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench_prep.errors import BenchPrepError, OutputsDiffer
from bench_prep.fastpath import attach
from bench_prep.prove.source.operations import OPERATIONS, Kind, Operation
from bench_prep.prove.source.requests import ASKED
from bench_prep.prove.source.twins import HAPPENINGS, Twins
from bench_prep.prove.source.variants import Attach, Variant

#: Steps after which a trace starts anew, with new runners.
TRACE_STEPS = 2000
#: The first trace of each variant is shorter, so that a fault of one variant is found soon.
FIRST_TRACE_STEPS = 100
#: How many requests are wanted at a time, until another number is.
_WANTED = (1, 1, 1, 1, 2, 3, 5)


@dataclass
class Totals:
    """What was done so far.

    `coverage` counts each operation, happening (`twins.HAPPENINGS`) and kind of request;
    `fallbacks` the steps left to vLLM's own path, by the step gate's reason.
    """

    steps: int = 0
    dispatched: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    coverage: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """All of it, the commonest first."""
        return {
            "steps": self.steps,
            "dispatched": self.dispatched,
            "fallbacks": dict(self.fallbacks.most_common()),
            "coverage": dict(self.coverage.most_common()),
        }

    def missing(self) -> list[str]:
        """What was never done although every proof should."""
        wanted = [operation.name for operation in OPERATIONS]
        return [name for name in (*wanted, *HAPPENINGS, *ASKED) if not self.coverage[name]]


def prove(
    all_variants: tuple[Variant, ...],
    steps: int,
    seed: int,
    progress: Callable[[Totals, str], None] = lambda totals, name: None,
    attach: Attach = attach,
) -> Totals:
    """At least `steps` steps of twins, spread evenly over the variants.

    `progress` is called when a trace begins, and some times in it, with the variant's name. What
    `attach` returns counts its steps as the fast path does.

    Raises:
        OutputsDiffer: at the first difference, with what repeats it.
        BenchPrepError: the fast path gave up because of an error of its own.
        Missing: the fast path does not serve this vLLM.
    """
    totals = Totals()
    trace = 0
    while totals.steps < steps:
        longest = TRACE_STEPS if trace else FIRST_TRACE_STEPS
        share = min(longest, -(-(steps - totals.steps) // len(all_variants)))
        for variant in all_variants:
            progress(totals, variant.name)
            for _ in _trace(variant, f"{seed}/{trace}", share, totals, attach):
                progress(totals, variant.name)
        trace += 1
    return totals


def _trace(
    variant: Variant, name: str, steps: int, totals: Totals, attach: Attach
) -> Iterator[None]:
    """One trace, counted in `totals`; yields now and then."""
    rng = random.Random(f"{variant.name}/{name}")
    twins, candidate = variant.twins(rng.getrandbits(31), attach)
    done = 0
    try:
        for operation in operations(twins, rng, steps):
            totals.coverage[operation.name] += 1
            if twins.steps >= done + 100:
                totals.steps += twins.steps - done
                done = twins.steps
                yield
    except OutputsDiffer as error:
        raise OutputsDiffer(
            f"{variant.name}, trace {name}, {error.message}",
            "the same --seed repeats it; the fast path is wrong, report it with this line",
        ) from None
    finally:
        totals.steps += twins.steps - done
        totals.dispatched += candidate.dispatched
        totals.fallbacks.update(candidate.fallbacks)
        totals.coverage.update(twins.seen)
    if candidate.closed:
        raise BenchPrepError(
            f"{variant.name}, trace {name}: the fast path gave up: {candidate.closed}"
        )


def operations(twins: Twins, rng: random.Random, steps: int) -> Iterator[Operation]:
    """Apply random operations until `steps` more steps were taken; yields each one afterwards."""
    end = twins.steps + steps
    wanted = 1
    while twins.steps < end:
        if rng.random() < 0.02:
            wanted = rng.choice(_WANTED)
        live = len(twins.live)
        kinds: list[Kind] = ["arrival"] if live < wanted else []
        if rng.random() < (0.01 if live == wanted else 0.1):
            kinds.append("departure")
        if rng.random() < 0.05:
            kinds.append("change")
        for kind in (*kinds, "step"):
            possible = [o for o in OPERATIONS if o.kind == kind and o.possible(twins)]
            if possible:
                operation = rng.choices(possible, [o.weight for o in possible])[0]
                operation.apply(twins, rng.randint)
                yield operation

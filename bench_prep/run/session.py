"""One candidate against vLLM's own preparation, in one process: proved equal, then timed.

All that the proof and the clock run is imported with this module: make the guard behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from bench_prep.candidate.alone import ROUNDS, Alone
from bench_prep.candidate.arms import Arms
from bench_prep.candidate.draws import repeatable
from bench_prep.candidate.guard import Guard
from bench_prep.candidate.load import attach, load_factory
from bench_prep.child.channel import Event
from bench_prep.decode.stretches import stretches
from bench_prep.measure.clocks import clock_cost
from bench_prep.measure.plan import Timing
from bench_prep.measure.state import state_reader
from bench_prep.measure.watch import Watch
from bench_prep.run.events import ClockCost, Equal, Stopped, Timed
from bench_prep.settings import RunSettings

__all__ = ["Guard", "try_candidate"]
Send = Callable[[Event], None]


def try_candidate(settings: RunSettings, guard: Guard, send: Send) -> None:
    """Load the candidate, prove it equal on the guarded runner, and time it.

    `guard` was made before anything of the candidate has run. The events that go to `send`:
    `Equal`, `ClockCost`, one `Timed` per finished round, `Stopped`.
    Everything that a run draws comes from one seed: unless the settings have one, it is new, and
    made once the candidate has been loaded, so that the candidate cannot know it.

    Raises:
        OutputsDiffer: the states differ, in the proof or in any step of a timed block.
        UsageError: the candidate cannot be loaded, raises, or does more than its own work.
        Missing: it left every step to vLLM's own path.
        Inconclusive: the baseline has become much slower since the candidate was loaded.
    """
    name = settings.candidate
    runner = guard.runners[1]
    few = settings.rounds is not None and settings.rounds < ROUNDS
    alone = None if few else Alone(settings, guard.runners)
    candidate = attach(name, load_factory(name), runner)
    guard.require_code(name)
    seed = int.from_bytes(os.urandom(4)) if settings.seed is None else settings.seed
    watch = Watch(state_reader(runner.device))
    arms = Arms(settings, guard, candidate, seed, watch.disturbances)
    with arms.at_work(), repeatable(seed):
        proof = arms.prove(stretches(settings.position, arms.last_position, settings.block_sizes))
        guard.integrity.watch(**arms.watched)
        send(Equal(proof.steps, proof.boundaries, seed))
        send(ClockCost(clock_cost(arms.device)))
        timing = Timing(arms.take, settings.method)
        checked = 0
        for number, one in enumerate(timing.rounds(watch.left_out), start=1):
            checked += one.steps  # every one of them, by `arms.take`
            arms.require_equal(f"after round {number}")
            arms.require_own_work()
            arms.require_saved(one)
            if alone is not None:
                alone.require_kept(one)
            send(
                Timed(
                    one,
                    watch.span,
                    dispatched_pct=arms.dispatched_pct,
                    slices=timing.slices,
                    drawn_steps=arms.compared,
                    checked_steps=checked,
                )
            )
    send(Stopped(timing.stopped_by))

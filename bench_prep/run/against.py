"""Two worktrees against each other: baseline process / candidate process / baseline process again.

Each arm is the method that vLLM itself calls, `GPUModelRunner._prepare_inputs`, in a process of
its own with its worktree's vLLM, so that a change anywhere in it counts. The states that baseline
and candidate reach are compared across the processes, buffer by buffer, after every step of the
proof and after every timed block, and every step of a slice by its sums (`candidate.fold`).

Before and after are two processes of the baseline: how much they differ is how much two processes
of the same code do, and a verdict must be about more (`measure.comparison`). Each slice follows one
of another process then, and each process has a third of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any

from bench_prep.candidate.draws import Draws, repeatable
from bench_prep.candidate.effort import MovedWork
from bench_prep.candidate.fold import differ, first_other
from bench_prep.child.channel import Event
from bench_prep.child.device import child_environment
from bench_prep.child.launch import launched, temporary_folder
from bench_prep.child.parent_end import Answer, Child
from bench_prep.decode.events import Imported, State
from bench_prep.decode.stretches import stretches
from bench_prep.errors import BenchPrepError, OutputsDiffer
from bench_prep.measure.plan import Timing
from bench_prep.measure.records import Arm, Samples
from bench_prep.measure.state import MachineState, together
from bench_prep.measure.watch import Watch
from bench_prep.provenance.verify import Verification
from bench_prep.run.events import (
    ClockCost,
    Digests,
    Equal,
    Located,
    Machine,
    Obeyed,
    OnlyInCandidate,
    Ready,
    Slice,
    StepSums,
    Stopped,
    Timed,
)
from bench_prep.settings import RunSettings

#: What a path says of a container in an attribute, and a path that ends in an attribute.
_OF_CONTAINER = r"(\.(keys|len|sorted|only_empty_lists|get_state)\(\))+(\[\d+\])?"
_CONTAINER = re.compile(f"{_OF_CONTAINER}$")
_ATTRIBUTE = re.compile(rf"(^|\.)\w+({_OF_CONTAINER})?$")
#: Least untimed steps of a slice: so many take longer after another process had the processor.
SWITCHED = 50


def compare_worktrees(
    settings: RunSettings,
    baseline: Verification,
    candidate: Verification,
    logs: tuple[Path, Path, Path],
    on_event: Callable[[Event], None],
) -> None:
    """Prove the two equal and time them; the events are those of one timing process.

    Each vLLM is the one in its own environment (`provenance.environments`).

    Raises:
        OutputsDiffer: naming buffer, index, expected (the baseline's) and found.
        BenchPrepError: whatever else stops one of the three processes.
    """
    with ExitStack() as stack:
        scratch = stack.enter_context(temporary_folder())

        def start(name: str, verified: Verification, log: Path) -> Child:
            job = {
                "settings": settings.model_dump(mode="json"),
                "package_dir": str(verified.package_dir),
                "hashes": verified.python_hashes,
                "site": str(verified.package_dir.parent),
            }
            return stack.enter_context(
                launched(
                    "bench_prep.run.arm_process",
                    job,
                    child_environment(settings.device),
                    log,
                    who=f"the {name} process",
                    named=True,
                )
            )

        one = start("baseline", baseline, logs[0])
        other = start("candidate", candidate, logs[1])
        again = start("second baseline", baseline, logs[2])
        _Comparison(settings, one, other, again, scratch, on_event).run()


class _Comparison:
    def __init__(
        self,
        settings: RunSettings,
        baseline: Child,
        candidate: Child,
        again: Child,
        scratch: Path,
        on_event: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._baseline = baseline
        self._candidate = candidate
        self._again = again
        self._scratch = scratch
        self._on_event = on_event
        self._new: set[str] = set()
        self._seed = int.from_bytes(os.urandom(4)) if settings.seed is None else settings.seed
        self._drawn_steps = 0
        self._on_cpu = True

    def run(self) -> None:
        processes = (*self._both(), self._again)
        imported = [process.answer(Imported) for process in processes]
        for one in imported[:2]:
            self._on_event(one)
        ready = [process.answer(Ready) for process in processes][1]
        self._on_cpu = ready.environment["platform"] == "cpu"
        self._on_event(State(ready.environment))
        self._exempt(*self._ask_both(Digests, "digests"))
        self._prove_equal(ready.last_position)
        with repeatable(self._seed):
            self._time()
        self._ask_both(Obeyed, "check")
        self._again.ask(Obeyed, do="check")

    def _both(self) -> tuple[Child, Child]:
        return self._baseline, self._candidate

    def _ask_both(self, answer: type[Answer], do: str, **more: Any) -> tuple[Answer, Answer]:
        for process in self._both():
            process.send({"do": do, **more})
        return self._baseline.answer(answer), self._candidate.answer(answer)

    def _exempt(self, expected: Digests, found: Digests) -> None:
        """Attributes that only the candidate's classes have cannot be compared, and are named."""
        new = [
            path
            for path in found.digests
            if path not in expected.digests and _ATTRIBUTE.search(path) and not self._is_new(path)
        ]
        self._new.update(_CONTAINER.sub("", path) for path in new)
        if new:
            self._on_event(OnlyInCandidate(sorted(self._new)))

    def _is_new(self, path: str) -> bool:
        return any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in self._new)

    def _prove_equal(self, last: int) -> None:
        settings = self._settings
        steps = boundaries = 0
        for part in stretches(settings.position, last, settings.block_sizes):
            begun = self._ask_both(Digests, "restart", stretch=[part[0], part[-1]])
            if steps == 0:
                self._exempt(*begun)
            self._compare(*begun, f"before position {part[0]}")
            for position in part:
                self._compare(*self._ask_both(Digests, "step"), f"at position {position}")
                steps += 1
                boundaries += sum(position % size == 0 for size in settings.block_sizes)
        self._compare(*self._ask_both(Digests, "restart", stretch=None), "before the timing")
        self._on_event(Equal(steps, boundaries, self._seed))

    def _time(self) -> None:
        passes = 1 if self._on_cpu else 2  # as `clocks.time_block` takes them
        draws = Draws(self._seed, self._settings.position, self._settings.block_sizes)
        checked: list[Digests] = []
        steps: dict[str, str] = {}
        moved = MovedWork()

        processes: dict[Arm, Child] = {
            "baseline_before": self._baseline,
            "candidate": self._candidate,
            "baseline_after": self._again,
        }

        def take(arm: Arm, warmup: int, iters: int) -> Samples:
            process, warmup = processes[arm], max(warmup, SWITCHED)
            drawn = draws.slice(arm, warmup + iters, passes)
            found = process.ask(
                Slice,
                do="slice",
                warmup=warmup,
                iters=iters,
                seed=drawn.seed,
                due=drawn.due,
                rows=arm != "baseline_after",  # of what was there before a request
            )
            if arm == "baseline_before":
                checked[:] = found.checked
                steps.clear()
                steps.update(found.digests)
            elif arm == "candidate":
                for index, pair in enumerate(zip(checked, found.checked, strict=True)):
                    when = f"at position {pair[0].position} in a timed block"
                    self._compare(*pair, when, index)
                    self._drawn_steps += 1
            self._compare_steps(steps, found.digests, process)
            moved.add(arm, found.processor_ns, found.counted)
            watch.disturbances(arm).add(**found.disturbances)
            return found.samples

        self._on_event(self._baseline.ask(ClockCost, do="clock_cost"))
        watch = Watch(self._machine)
        timing = Timing(take, self._settings.method)
        every_step = 0
        for number, one in enumerate(timing.rounds(watch.left_out), start=1):
            every_step += one.steps  # compared by `take`
            self._compare(*self._ask_both(Digests, "digests"), f"after round {number}")
            moved.require_saved("the candidate's preparation", one)
            self._on_event(
                Timed(
                    one,
                    watch.span,
                    dispatched_pct=None,
                    slices=timing.slices,
                    drawn_steps=self._drawn_steps,
                    checked_steps=every_step,
                )
            )
        self._on_event(Stopped(timing.stopped_by))

    def _machine(self) -> MachineState:
        answers = (*self._ask_both(Machine, "machine"), self._again.ask(Machine, do="machine"))
        return reduce(together, (answer.state for answer in answers))

    def _compare(
        self,
        expected: Digests,
        found: Digests,
        when: str,
        checked: int | None = None,
    ) -> None:
        """Compare two answers: of now, or of the `checked`-th check of the last slices."""
        left, right = expected.digests, found.digests
        for path in [*left, *(path for path in right if path not in left)]:
            if left.get(path) != right.get(path) and not self._is_new(path):
                raise OutputsDiffer(
                    f"outputs differ {when}: {self._located(path, checked)}",
                    "correct the candidate's worktree; no timing is reported",
                )
        for path in sorted(set(expected.moved) ^ set(found.moved)):
            if not self._is_new(path):
                raise OutputsDiffer(
                    f"outputs differ {when}: {path} moved to other memory in one worktree alone",
                    "keep vLLM's buffers in place; no timing is reported",
                )
        cut = self._cut_off(expected.memory, found.memory)
        if cut is not None:
            raise OutputsDiffer(
                f"outputs differ {when}: {cut} shares memory with others in one worktree alone",
                "keep views and the buffers they look into together; no timing is reported",
            )

    def _compare_steps(
        self, expected: dict[str, str], found: dict[str, str], process: Child
    ) -> None:
        """Compare all steps of the process's last slice with the baseline's."""
        path = first_other(expected, {p: one for p, one in found.items() if not self._is_new(p)})
        if path is not None:
            one, other = (
                arm.ask(StepSums, do="steps", path=path).steps for arm in (self._baseline, process)
            )
            raise differ(path, one, other, "correct the candidate's worktree")

    def _cut_off(self, expected: dict[str, int], found: dict[str, int]) -> str | None:
        """The first path that shares its memory with another earlier path than in the baseline."""
        first: tuple[dict[int, str], dict[int, str]] = ({}, {})
        for path in expected:
            if path in found and not self._is_new(path):
                one = first[0].setdefault(expected[path], path)
                if one != first[1].setdefault(found[path], path):
                    return path
        return None

    def _located(self, path: str, checked: int | None) -> str:
        file = str(self._scratch / "expected")
        try:
            self._baseline.ask(Obeyed, do="save", file=file, checked=checked)
            ask = {"do": "locate", "path": path, "file": file, "checked": checked}
            return self._candidate.ask(Located, **ask).difference
        except BenchPrepError:
            return path

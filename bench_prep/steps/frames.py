"""Recordings as steps: what each part of the host's work took in each step of an arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench_prep.errors import Inconclusive
from bench_prep.steps.device import DeviceSteps
from bench_prep.steps.parts import (
    CLIENT,
    ENGINE_CORE,
    EXECUTE,
    GET_OUTPUT,
    NUMBERS,
    OUTPUT,
    PREPROCESS,
    RUNNER,
    SAMPLE_TOKENS,
)
from bench_prep.steps.recorder import Recording
from bench_prep.steps.stretches import NO_DECODE, Stretch

Times = NDArray[np.int64]

#: Of the runner's thread, in the order of a step; the three first are inside the preparation.
_IN_PREPARATION = ("update states", "prepare inputs", "attention metadata")
_AFTER = ("forward launch", "logits", "sample", "bookkeeping")
OTHER_PREPARATION, REST, BETWEEN = "other preparation", "the rest", "between two calls"
#: Names of the places where work is done.
HOST, CORE, WORKER, DEVICE, BESIDE = "host", "engine core", "worker", "device", "client"
WORK, WAIT = "work", "wait"


@dataclass(frozen=True)
class Frames:
    """Steps of one arm: each from the start of `execute_model` to the next one's, in ns."""

    begins: Times
    ends: Times
    rounds: Times
    stretches: Times

    @property
    def lengths(self) -> Times:
        return self.ends - self.begins

    def __len__(self) -> int:
        return len(self.begins)


def frames_of(
    steps: Sequence[Sequence[int]], stretches: Sequence[Stretch], arm: str, recorded: bool
) -> Frames:
    """The steps that count of `arm`, with the probes or without.

    A step counts where the next one is a decode step too: at the end of a request the engine
    waits for the next.
    """
    table = np.asarray(steps, dtype=np.int64).reshape(-1, 2)
    wanted = [i for i, one in enumerate(stretches) if (one.arm, one.recorded) == (arm, recorded)]
    counts = np.isin(table[:-1, 1], wanted) & (table[1:, 1] != NO_DECODE)
    index = table[:-1, 1][counts]
    rounds = np.array([one.round for one in stretches], dtype=np.int64)
    return Frames(table[:-1, 0][counts], table[1:, 0][counts], rounds[index], index)


def spent(frames: Frames, recording: Recording | None, name: str) -> Times:
    """What `name` took in each step, in ns: all records that begin in it."""
    result = np.zeros(len(frames), dtype=np.int64)
    where, records = _placed(frames, recording, name)
    np.add.at(result, where, records[:, 2] - records[:, 1])
    return result


def records_per_step(frames: Frames, recordings: Mapping[str, Recording | None]) -> float:
    """How many records a step has, the client's, which are beside it, left out."""
    total = sum(
        len(_placed(frames, recording, None)[0])
        for name, recording in recordings.items()
        if name != CLIENT
    )
    return total / max(len(frames), 1)


def _placed(
    frames: Frames, recording: Recording | None, name: str | None
) -> tuple[Times, NDArray[np.int64]]:
    """The step of each record, and the records; those that begin in no step are left out."""
    if recording is None:
        return np.zeros(0, dtype=np.int64), np.zeros((0, 3), dtype=np.int64)
    records = recording.records
    if name is not None:
        records = records[records[:, 0] == NUMBERS[name]]
    where = np.searchsorted(frames.begins, records[:, 1], side="right") - 1
    inside = (where >= 0) & (records[:, 1] < frames.ends[where])
    return where[inside], records[inside]


@dataclass(frozen=True)
class Part:
    """One part of the steps of an arm.

    Attributes:
        where: `HOST` where one thread does all; else `CORE` and `WORKER`, two processes,
            `DEVICE`, or `BESIDE`, which no step waits for.
        kind: `WORK` or `WAIT`.
        times: what it took in each step, in ns.
    """

    name: str
    where: str
    kind: str
    times: Times

    @property
    def median(self) -> float:
        return float(np.median(self.times))


@dataclass(frozen=True)
class Arm:
    """What was found of one arm.

    Attributes:
        steps: its steps with the probes, in ns; `plain` those without.
        parts: of the steps with the probes.
        records: of a step.
        asynchronous: vLLM schedules the next step before it has the token of the last one.
        device: of profiled steps, where there is a device.
        blocked: of profiled steps, how long the host waits for the device inside a part, in ns.
    """

    name: str
    steps: Times
    plain: Times
    parts: list[Part]
    records: float
    asynchronous: bool = False
    device: DeviceSteps | None = None
    blocked: dict[str, float] = field(default_factory=dict)

    @property
    def step(self) -> float:
        """Median step with the probes, in ns."""
        return float(np.median(self.steps))

    def busy(self, where: str) -> float:
        """Median of what a place works in a step, in ns; 0 for a place that is not there.

        Of the device only what runs, not its own gaps: the profiler makes those longer.
        """
        if where == DEVICE:
            return float(np.median(self.device.busy)) if self.device else 0.0
        times = [part.times for part in self.parts if (part.where, part.kind) == (where, WORK)]
        blocked = sum(self.blocked.values()) if where == HOST else 0.0
        return max(0.0, float(np.median(np.sum(times, axis=0))) - blocked) if times else 0.0

    @property
    def places(self) -> list[str]:
        """Where a step's work is done."""
        found = dict.fromkeys(part.where for part in self.parts if part.where != BESIDE)
        return [*found, *([DEVICE] if self.device else [])]


def arm_of(
    name: str,
    steps: Sequence[Sequence[int]],
    stretches: Sequence[Stretch],
    recordings: Mapping[str, Recording | None],
    *,
    asynchronous: bool,
) -> Arm:
    """The arm's parts from the recordings of `parts.RECORDERS`.

    Raises:
        Inconclusive: the arm has no step.
    """
    frames = frames_of(steps, stretches, name, True)
    plain = frames_of(steps, stretches, name, False)
    if not len(frames) or not len(plain):
        raise Inconclusive(f"no step of {name} was recorded", "run again")
    return Arm(
        name,
        frames.lengths,
        plain.lengths,
        host_parts(frames, recordings),
        records_per_step(frames, recordings),
        asynchronous,
    )


def host_parts(frames: Frames, recordings: Mapping[str, Recording | None]) -> list[Part]:
    """The host's parts, in the order of a step.

    Where engine core and runner are one thread, everything is measured along it, and the rest is
    what no part has. Where they are two processes, the worker's rest is that of its own two
    calls, and between them it waits.
    """
    runner, core, output, client = (
        recordings.get(name) for name in (RUNNER, ENGINE_CORE, OUTPUT, CLIENT)
    )
    one_thread = same_thread(runner, core)
    here, there = (HOST, HOST) if one_thread else (WORKER, CORE)
    preparation = {name: spent(frames, runner, name) for name in _IN_PREPARATION}
    whole = spent(frames, runner, PREPROCESS)
    preparation[OTHER_PREPARATION] = whole - np.sum(list(preparation.values()), axis=0)
    parts = [Part("schedule", there, WORK, spent(frames, core, "schedule"))]
    parts += [Part(name, here, WORK, times) for name, times in preparation.items()]
    parts += [Part(name, here, WORK, spent(frames, runner, name)) for name in _AFTER]
    parts.append(Part("output handling", there, WORK, spent(frames, core, "output handling")))
    waits = []
    if one_thread and same_thread(runner, output):
        waits.append(Part(GET_OUTPUT, HOST, WAIT, spent(frames, output, GET_OUTPUT)))
    along = frames.lengths
    if not one_thread:
        calls = spent(frames, runner, EXECUTE) + spent(frames, runner, SAMPLE_TOKENS)
        waits.append(Part(BETWEEN, WORKER, WAIT, along - calls))
    counted = [part.times for part in (*parts, *waits) if part.where == here]
    parts.append(Part(REST, here, WORK, along - np.sum(counted, axis=0)))
    beside = spent(frames, client, "client")
    return [*parts, *waits, *([Part("client", BESIDE, WORK, beside)] if beside.any() else [])]


def blocked(
    frames: Frames, recordings: Mapping[str, Recording | None], waits: Times
) -> dict[str, float]:
    """How long the host waits for the device inside each part: the median step's, in ns.

    `waits` has begin and end of each call that synchronizes; those that wait for the sampled
    token are not inside a part.
    """
    found: dict[str, float] = {}
    runner = recordings.get(RUNNER)
    left = waits
    for name in (*_IN_PREPARATION, PREPROCESS, *_AFTER):
        _, records = _placed(frames, runner, name)
        where = np.searchsorted(records[:, 1], left[:, 0], side="right") - 1
        inside = (where >= 0) & (left[:, 0] < records[where, 2] if len(records) else False)
        times = np.zeros(len(frames), dtype=np.int64)
        step = np.searchsorted(frames.begins, left[inside, 0], side="right") - 1
        np.add.at(times, step, left[inside, 1] - left[inside, 0])
        left = left[~inside]
        if median := float(np.median(times)):
            found[OTHER_PREPARATION if name == PREPROCESS else name] = median
    return found


def same_thread(one: Recording | None, other: Recording | None) -> bool:
    """Whether two recorders recorded in one thread of one process."""
    return (
        one is not None
        and other is not None
        and (one.process, one.thread) == (other.process, other.thread)
    )

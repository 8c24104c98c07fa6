"""`bench-prep steps`: where the time of one decode step goes, in a running engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.child.channel import Event
from bench_prep.child.launch import temporary_folder
from bench_prep.engine.events import Compared
from bench_prep.engine.vllm.arguments import engine_arguments
from bench_prep.engine.vllm.launch import (
    begin,
    engine_environment,
    launched_engine,
    not_used_in,
    unpinned,
)
from bench_prep.engine.vllm.names import LOAD_FORMAT
from bench_prep.engine.vllm.shapes import write_model
from bench_prep.errors import EXIT_INCONCLUSIVE, UsageError
from bench_prep.stages import Stages, Update
from bench_prep.steps.chrome import chrome_trace, last_run
from bench_prep.steps.device import device_steps, read_profile
from bench_prep.steps.events import Profiled, Recordable, Recorded
from bench_prep.steps.frames import arm_of, blocked, frames_of
from bench_prep.steps.parts import FOLDER, RECORDERS
from bench_prep.steps.recorder import CAPACITY, read_recording
from bench_prep.steps.result import result_of
from bench_prep.steps.store import TABLE, rows, trace_path
from bench_prep.steps.stretches import Stretch
from bench_prep.steps.view import view

#: Steps of a stretch that are left out after the preparation or the probes have changed.
WARMUP = 8
#: The fewest steps of which a median is shown.
LEAST_STEPS = 200
#: At most; of one recorder.
RECORDS_OF_A_STEP = 16
#: A request of fewer tokens would be over before its steps are steady.
LEAST_ROOM = 64


@dataclass(frozen=True)
class Workload:
    """What is decoded, and how often.

    Attributes:
        own_weights: those in the model's folder; else random ones.
        eager: without compilation and CUDA graphs.
        stretch: recorded steps of each stretch.
        rounds: of these, one stretch of the fast path each and two of vLLM's own preparation.
    """

    model: str
    prompt_tokens: int
    max_model_len: int
    own_weights: bool = False
    eager: bool = False
    stretch: int = 16
    rounds: int = 30

    def check(self) -> None:
        """Raises `UsageError` for what cannot be run."""
        if self.prompt_tokens > self.max_model_len - LEAST_ROOM:
            raise UsageError(
                f"--prompt-tokens {self.prompt_tokens} leaves no room in --max-model-len "
                f"{self.max_model_len}",
                f"leave {LEAST_ROOM} tokens: --max-model-len {self.prompt_tokens + LEAST_ROOM}",
            )
        if self.stretch * self.rounds < LEAST_STEPS:
            raise UsageError(
                f"--stretch {self.stretch} times --rounds {self.rounds} are fewer than "
                f"{LEAST_STEPS} steps",
                f"--rounds {-(-LEAST_STEPS // self.stretch)}",
            )
        # Three stretches of a round are recorded.
        if 3 * self.rounds * (WARMUP + self.stretch) * RECORDS_OF_A_STEP > CAPACITY:
            raise UsageError(
                f"--stretch {self.stretch} times --rounds {self.rounds} are more steps than can be "
                "recorded",
                "give fewer rounds",
            )
        if self.own_weights and not list(Path(self.model).glob("*.safetensors")):
            raise UsageError(
                f"--weights: {self.model} is no folder with *.safetensors files",
                "give such a folder, or leave --weights away for random ones",
            )

    def engine(self, folder: Path, device: str) -> dict[str, Any]:
        """Arguments of vLLM's `LLM`; a `config.json` is written into the empty `folder`."""
        arguments = engine_arguments(write_model(self.model, folder), device, self.max_model_len)
        if self.own_weights:
            arguments["model"] = str(Path(self.model).resolve())
        else:
            arguments["load_format"] = LOAD_FORMAT
        return arguments | ({"enforce_eager": True} if self.eager else {})


@dataclass
class _Engine:
    """What the engine's process has sent so far."""

    loaded: Recordable = field(init=False)
    checked: int = 0
    recorded: Recorded = field(init=False)
    profiled: dict[str, Profiled] = field(default_factory=dict)


def show_steps(work: Workload, device: str, *, output: Path, command: str, console: Console) -> int:
    """Run one engine, show its steps, add the rows to `output`, write the trace beside it; 0, or 4
    where the change by the fast path is inconclusive.

    Raises:
        BenchPrepError: whatever stops it; then nothing is written.
    """
    work.check()
    TABLE.check_writable(output)
    begun = begin("steps", device, work.max_model_len, console)
    stages = begun.stages
    engine = _Engine()
    with temporary_folder() as scratch, stages.running("engine") as update:
        update("loading the model")
        recordings_folder = scratch / "recordings"
        recordings_folder.mkdir()
        model = scratch / "model"
        model.mkdir()
        job = {
            "engine": work.engine(model, device),
            "prompt_tokens": work.prompt_tokens,
            "warmup": WARMUP,
            "iters": work.stretch,
            "rounds": work.rounds,
        }
        environment = engine_environment(device, fastpath=True) | {
            FOLDER: str(recordings_folder),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        }
        keep = _keeping(engine, stages, update)
        with launched_engine("bench_prep.steps.process", job, environment, begun.log) as child:
            for event in child.events():
                keep(event)
        recordings = {name: read_recording(recordings_folder, name) for name in RECORDERS}
        profiles = {
            arm: read_profile(recordings_folder / f"{arm}.profile.json", event.offset_ns)
            for arm, event in engine.profiled.items()
        }
    arms, shown = [], []
    loaded, steps, stretches = engine.loaded, engine.recorded.steps, engine.recorded.stretches
    for name in dict.fromkeys(one.arm for one in stretches):
        arm = arm_of(
            name,
            steps,
            stretches,
            recordings,
            asynchronous=loaded.asynchronous,
        )
        frames = frames_of(steps, stretches, name, True)
        profile = profiles.get(name)
        if profile is not None:
            frames = frames_of(engine.profiled[name].steps, [Stretch(name, True, 0)], name, True)
            arm = replace(
                arm,
                device=device_steps(profile.activities, frames.begins, frames.ends),
                blocked=blocked(frames, recordings, profile.waits),
            )
        arms.append(arm)
        shown.append(last_run(name, frames, profile.activities if profile else ()))
    found = result_of(arms, steps, stretches, loaded.record_ns)
    stages.passed("engine", _engine_line(work, engine.checked, begun.log))
    frame = rows(
        found,
        {
            "run": begun.run_id,
            "started": begun.started,
            "model": work.model,
            "prompt_tokens": work.prompt_tokens,
            "max_model_len": loaded.settings["max_model_len"],
            "eager": work.eager,
            "rounds": work.rounds,
            "stretch": work.stretch,
        }
        | begun.provenance
        | unpinned(loaded.environment)
        | {
            "bench_prep_version": __version__,
            "command": command,
            "equality_steps": engine.checked,
        },
    )
    trace = chrome_trace(shown, recordings, {"command": command, "run": begun.run_id})
    trace_file = trace_path(output, begun.run_id)
    TABLE.keep(output, frame.to_dict("records"), begun.run_id, trace_file, trace)
    console.print(view(found))
    if not engine.profiled:
        stages.passed("", "no device: on the CPU platform the forward is the host's own work")
    elif any(arm.device is None for arm in arms):
        stages.passed("", "the profiler saw no work of the device in these steps: not known")
    stages.passed("result", f"{output}; the steps for ui.perfetto.dev in {trace_file}")
    return EXIT_INCONCLUSIVE if found.inconclusive else 0


def _keeping(engine: _Engine, stages: Stages, update: Update) -> Callable[[Event], None]:
    """Keep what the engine's process sends, and show each stage as it passes."""
    began = time.monotonic()

    def on_event(event: Event) -> None:
        took = f"after {time.monotonic() - began:.0f} s"
        match event:
            case Recordable(environment):
                engine.loaded = event
                here = unpinned(environment)
                stages.passed(
                    "launch",
                    f"vLLM {here['vllm_version']} on {here['device_name']}, loaded {took}",
                )
                update("warming up, and comparing the fast path with vLLM's own preparation")
            case Compared(steps):
                engine.checked = steps
                stages.passed("equal", f"both preparations left the same state in {steps} steps")
                update("recording", "steps")
            case Recorded(stretches, recorded):
                engine.recorded = event
                counted = sum(number >= 0 for _, number in recorded)
                stages.passed("steps", f"{counted} in {len(stretches)} stretches, {took}")
                update("profiling the device", "device")
            case Profiled(arm, profiled):
                engine.profiled[arm] = event
                stages.passed("device", f"{arm}: {len(profiled)} steps profiled")

    return on_event


def _engine_line(work: Workload, checked: int, log: Path) -> str:
    counted = work.stretch * work.rounds
    text = f"{work.model} after a prompt of {work.prompt_tokens} tokens; {2 * counted} steps of "
    if checked:
        return f"{text}vLLM's own preparation, {counted} of the fast path ({checked} compared)"
    why = not_used_in(log) or "no plugin"
    return f"{text}vLLM's own preparation; the fast path does not serve it ({why})"

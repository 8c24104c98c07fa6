"""Every trick by which a candidate only looks fast is refused, and honest ones are not.

One pair of runners serves all tests; each candidate runs in a process that is forked from it, so
that whatever it does to vLLM, to torch or to the clock is gone with it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from bench_prep.child.device import is_cpu
from bench_prep.errors import BenchPrepError, Inconclusive, OutputsDiffer, UsageError
from bench_prep.settings import OUR_CANDIDATE, RunSettings

pytestmark = pytest.mark.vllm
HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[2] / "examples"
SETTINGS = RunSettings(
    position=1000, max_model_len=2048, max_num_reqs=8, max_num_tokens=64, warmup=10, iters=60,
    rounds=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def guard() -> Any:
    """Of a pair of runners, before anything of a candidate runs."""
    if not is_cpu("auto"):
        pytest.skip("a device does not outlive a fork")
    from bench_prep.decode.runner import make_runners
    from bench_prep.run.session import Guard  # with all that the proof and the clock run

    return Guard(*make_runners(SETTINGS, 2))


def tried(guard: Any, candidate: str, against: bool = False, **changed: Any) -> dict[str, Any]:
    """What becomes of a candidate: its `rounds`, or its error's `exit_code` and `message`.

    With `against` it takes the place of a worktree's own preparation.
    """
    settings = SETTINGS.model_copy(update={"candidate": candidate, **changed})
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = _outcome(guard, settings, _time_worktrees if against else _try_candidate)
            os.write(writer, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:  # two threads in vLLM at once may end the process
        return {"exit_code": 1, "message": f"crashed: {os.waitstatus_to_exitcode(status)}"}
    found: dict[str, Any] = json.loads(text)
    return found


Events = list[Any]


def _outcome(
    guard: Any, settings: RunSettings, timed: Callable[[Any, RunSettings, Events], None]
) -> dict[str, Any]:
    import torch

    from bench_prep.run.events import Timed

    torch.set_num_threads(1)  # as in the timing process
    events: Events = []
    try:
        timed(guard, settings, events)
    except BenchPrepError as error:
        return {"exit_code": error.exit_code, "message": error.message, "remedy": error.remedy}
    except Exception as error:
        return {"exit_code": 1, "message": f"{type(error).__name__}: {error}"}
    rounds = [event for event in events if isinstance(event, Timed)]
    return {"exit_code": 0, "rounds": len(rounds), **asdict(rounds[-1])}


def _try_candidate(guard: Any, settings: RunSettings, events: Events) -> None:
    from bench_prep.run.session import try_candidate

    try_candidate(settings, guard, events.append)


def _time_worktrees(guard: Any, settings: RunSettings, events: Events) -> None:
    """As the two processes of `--against` do, with both arms in this one."""
    import torch

    from bench_prep.candidate.load import attach, load_factory
    from bench_prep.run.against import _Comparison
    from bench_prep.run.arm_process import _Arm

    baseline, runner = guard.runners
    name = settings.candidate
    runner._prepare_inputs = attach(name, load_factory(name), runner)

    class Process:
        def __init__(self, runner: Any) -> None:
            self.arm = _Arm(settings, runner, {})

        def send(self, command: dict[str, Any]) -> None:
            arguments = json.loads(json.dumps(command))
            self.said = getattr(self.arm, f"_{arguments.pop('do')}")(**arguments)

        def answer(self, kind: Any) -> Any:
            return TypeAdapter(kind).validate_json(json.dumps(self.said, default=vars))

        def ask(self, kind: Any, **command: Any) -> Any:
            self.send(command)
            return self.answer(kind)

    one, other = (Process(one) for one in (baseline, runner))
    with torch.inference_mode(), tempfile.TemporaryDirectory() as scratch:
        comparison = _Comparison(settings, one, other, one, Path(scratch), events.append)  # type: ignore[arg-type]
        comparison._prove_equal(one.arm.last_position)
        comparison._time()


WRONG, REFUSED, SLOWED = OutputsDiffer.exit_code, UsageError.exit_code, Inconclusive.exit_code
IN_ONE_STEP = r"at position \d+ in a timed block:"
TRICKS = [
    ("remembers:attach", WRONG, r"at position \d+ in a timed block: "),
    ("checked_alone:attach", WRONG, r"at position \d+ .*: .*slot_mapping"),
    ("in_one_step:slot", WRONG, rf"{IN_ONE_STEP} \S*slot_mapping"),
    ("in_one_step:padding", WRONG, rf"{IN_ONE_STEP} \S*input_ids"),
    ("in_one_step:mirror", WRONG, rf"{IN_ONE_STEP} \S*optimistic_seq_lens_cpu"),
    ("in_one_step:start", WRONG, rf"{IN_ONE_STEP} \S*query_start_loc"),
    ("in_one_step:returned", WRONG, rf"{IN_ONE_STEP} returned value"),
    ("adds_one:attach", WRONG, r"over poisoned outputs: .*: expected \d+, found -?\d+"),
    ("borrows:answers", WRONG, r"at position 1000: "),
    ("borrows:buffers", WRONG, r"is in the baseline's memory"),
    ("borrows:result", WRONG, r"returned value\[0\] is in the baseline's memory"),
    # What comes first is the scheduler's choice.
    (
        "another_thread:attach",
        (REFUSED, WRONG, 1),
        r"has threads of its own|outputs differ|raised|crashed: -11",
    ),
    ("another_thread:stays", REFUSED, r"has threads of its own \(waits for work\)"),
    ("another_thread:process", REFUSED, r"has processes of its own"),
    ("another_thread:joined_between", REFUSED, r"replaces _bookkeeping_sync of its runner"),
    ("between_calls:replaced_method", REFUSED, r"replaces _update_states of its runner"),
    ("between_calls:replaced_class", REFUSED, r"replaces its runner's class"),
    ("between_calls:finalizer", WRONG, r"over poisoned outputs: .*: expected \d+, found -?\d+"),
    ("between_calls:keeping_finalizer", REFUSED, r"saves \d+ us a step .*, but the process spends"),
    ("changes:code", REFUSED, r"changes vllm\.\S*GPUModelRunner\._prepare_inputs, "),
    ("changes:defaults", REFUSED, r"changes \S*_get_cumsum_and_arange, "),
    ("changes:module_global", REFUSED, r"changes vllm\.v1\.worker\.gpu_model_runner\.np, "),
    ("changes:constant", REFUSED, r"changes vllm\.v1\.attention\.backends\.utils\.PAD_SLOT_ID, "),
    ("changes:new_method", REFUSED, r"changes vllm\.\S*CPUModelRunner\.\w+, "),
    ("changes:baseline_s_method", REFUSED, r"_get_cumsum_and_arange of the baseline's runner"),
    ("changes:both_s_method", REFUSED, r"_compute_prev_positions of the baseline's runner"),
    ("changes:configuration", REFUSED, r"changes vLLM's configuration"),
    ("changes:torch_function", REFUSED, r"changes torch\.Tensor\.copy_, "),
    ("changes:numpy_function", REFUSED, r"changes numpy\S*\.cumsum, "),
    ("changes:synchronization", REFUSED, r"changes torch\.cuda\.synchronize, "),
    ("changes:collector", REFUSED, r"a setting .*: gc\.callbacks"),
    ("changes:disabled_collector", REFUSED, r"a setting .*: gc\.disable"),
    ("changes:frozen_collector", REFUSED, r"a setting .*: gc\.freeze"),
    ("changes:builtin", REFUSED, r"changes builtins\.len, "),
    ("changes:shadowed_builtin", REFUSED, r"changes vllm\.v1\.worker\.gpu_model_runner\.len, "),
    ("changes:tracing", REFUSED, r"changes a setting of the process .*: sys\.settrace"),
    ("changes:threads_of_torch", REFUSED, r"a setting .*: torch\.set_num_threads"),
    ("changes:dispatch_mode", REFUSED, r"a setting .*: a torch dispatch mode"),
    ("changes:clock", REFUSED, r"changes time\.perf_counter_ns, "),
    ("changes:clock_of_the_harness", REFUSED, r"changes bench_prep\.measure\.clocks\.time, "),
    ("changes:comparison", REFUSED, r"changes bench_prep\.decode\.equality\.require_equal, "),
    ("changes:while_timed", REFUSED, r"changes time\.perf_counter_ns, "),
    ("toggles:code", REFUSED, r"changes vllm\.\S*GPUModelRunner\._prepare_inputs, "),
    (
        "toggles:profile",
        SLOWED,
        r"takes \S+ ms a step beside the candidate, and took \S+ ms",
    ),
    (
        "toggles:late_profile",
        (SLOWED, REFUSED),
        r"takes \S+ ms a step beside the candidate, and took|of it elsewhere",
    ),
    ("changes:baseline_s_step", REFUSED, r"changes baseline\.prepare, "),
]


@pytest.mark.parametrize(("trick", "code", "words"), TRICKS, ids=[trick for trick, *_ in TRICKS])
def test_a_trick_is_caught(guard: Any, trick: str, code: int | tuple[int, ...], words: str) -> None:
    module, _, attribute = trick.partition(":")
    # Time that has been moved elsewhere is seen in blocks of some length.
    long = ("keeping_finalizer", "profile", "late_profile")
    iters = 300 if attribute in long else 2000 if module == "in_one_step" else SETTINGS.iters
    rounds = 7 if module == "toggles" and attribute != "code" else SETTINGS.rounds
    found = tried(guard, f"{HERE}/{module}.py:{attribute}", iters=iters, rounds=rounds)
    assert found["exit_code"] in (code if isinstance(code, tuple) else (code,)), found
    assert re.search(words, found["message"]), found
    if code == WRONG:
        assert re.search(r"; --seed \d+ draws the same again$", found["remedy"])


@pytest.mark.gpu
@pytest.mark.parametrize("attribute", ["attach", "joined_too_late"])
def test_another_stream(attribute: str) -> None:
    """Nothing is left running when the clock stops, which waits for every stream."""
    import torch

    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Workload, use_once
    from bench_prep.run.session import Guard

    torch.set_num_threads(1)  # as the timing process does all of this, before the guard looks
    candidate = f"{HERE}/another_stream.py:{attribute}"
    settings = SETTINGS.model_copy(update={"candidate": candidate})
    runners = make_runners(settings, 2)
    for runner in runners:
        use_once(runner, Workload.make(settings, runner.inputs_embeds_size, runner.dtype))
    found = _outcome(Guard(*runners), settings, _try_candidate)
    assert found["exit_code"] == WRONG, found


def test_each_trick_is_listed() -> None:
    files = {path.stem for path in HERE.glob("*.py")} - {
        "__init__",
        "honest",
        "outputs",
        "test_tricks",
    }
    assert {trick.partition(":")[0] for trick, *_ in TRICKS} | {"another_stream"} >= files


@pytest.mark.parametrize(
    "candidate", [OUR_CANDIDATE, f"{EXAMPLES}/same_path.py:attach", f"{HERE}/honest.py:compiled"]
)
def test_an_honest_candidate_is_timed(guard: Any, candidate: str) -> None:
    found = tried(guard, candidate)
    assert found["exit_code"] == 0, found
    assert found["rounds"] == 1
    assert found["drawn_steps"] >= 6
    assert found["checked_steps"] == 3 * SETTINGS.iters


def test_a_worktree_that_is_right_while_it_is_checked(guard: Any) -> None:
    found = tried(guard, f"{HERE}/checked_alone.py:attach", against=True)
    assert found["exit_code"] == WRONG, found
    assert re.search(rf"{IN_ONE_STEP} \S*slot_mapping", found["message"]), found
    found = tried(guard, f"{HERE}/in_one_step.py:slot", against=True, iters=2000)
    assert re.search(rf"{IN_ONE_STEP} \S*slot_mapping", found["message"]), found
    assert tried(guard, f"{EXAMPLES}/same_path.py:attach", against=True)["rounds"] == 1


def test_a_worktree_whose_work_is_done_between_the_calls(guard: Any) -> None:
    candidate = f"{HERE}/between_calls.py:keeping_finalizer"
    found = tried(guard, candidate, against=True, iters=300)
    assert found["exit_code"] == REFUSED, found
    assert re.search(r"the candidate's preparation saves \d+ us .* spends \d+ us", found["message"])

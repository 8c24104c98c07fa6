"""One engine of a model, with the fast path or without it: all phases, and what came out."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep.engine.compare import Outputs
from bench_prep.engine.names import PLUGIN
from bench_prep.errors import as_raised
from bench_prep.fastpath.plugin import SELFCHECK, SWITCH
from bench_prep.log_lines import NOT_USED
from bench_prep.measure.machine import cpu_model
from bench_prep.provenance.cachedir import new_log
from bench_prep.provenance.launch import run_isolated
from bench_prep.source import Source, prove_source
from bench_prep.stages import Stages
from bench_prep.target import child_environment, is_cpu, require_device

_LINES_SHOWN = 5


@dataclass
class EngineRun:
    """What one engine did.

    Attributes:
        vllm: its version.
        facts: of `ProbedWorker.engine_facts`.
        passes: the outputs of each pass over all phases.
        counts: the fast path's counters after each phase of the last pass, since the engine's
            start; None: not attached.
        faults: one `fault` event per planted wrong slot.
        not_used: what the fast path said when it was not attached.
    """

    vllm: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    passes: list[dict[str, list[dict[str, Any]]]] = field(default_factory=list)
    counts: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    not_used: str = ""

    @property
    def outputs(self) -> Outputs:
        """Of the first pass."""
        return self.passes[0]

    @property
    def dispatched(self) -> dict[str, int]:
        """Steps by the fast path in each phase of a single pass."""
        totals = [0, *((counts or {}).get("dispatched", 0) for counts in self.counts.values())]
        return {
            phase: after - before
            for phase, before, after in zip(self.counts, totals, totals[1:], strict=False)
        }

    @property
    def fallbacks(self) -> dict[str, int]:
        """Steps by vLLM's own path, by the step gate's reason."""
        last = list(self.counts.values())[-1]
        return {} if last is None else last["fallbacks"]


@dataclass(frozen=True)
class Begun:
    """A command that times the installed vLLM's engine, after its first stages.

    Attributes:
        run_id: what its rows have in common.
        started: UTC in ISO 8601.
        provenance: the columns of `source.prove_source`.
        log: where the engine's process writes.
    """

    run_id: str
    started: str
    provenance: dict[str, Any]
    log: Path
    stages: Stages


def begin(command: str, device: str, console: Console) -> Begun:
    """The device is there, and the installed vLLM is whole.

    Raises:
        BenchPrepError: whatever stops it.
    """
    require_device(device)
    stages = Stages(console)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run_id = uuid.uuid4().hex[:12]
    _, provenance = prove_source(Source(), device, stages)
    return Begun(run_id, started, provenance, new_log(f"{command}-{run_id}.log"), stages)


def run_engine(
    folder: Path,
    device: str,
    log: Path,
    *,
    fastpath: bool,
    passes: int = 1,
    plant: bool = False,
    update: Callable[[str], None] = lambda text: None,
) -> EngineRun:
    """Run all phases on a fresh engine of the model whose `config.json` is in `folder`.

    With `plant` the greedy request is repeated with one wrong slot, for each KV group with slots.

    Raises:
        BenchPrepError: the engine failed; the message has the end of its log.
    """
    run = EngineRun()
    ended: dict[str, Any] = {}

    def on_event(event: dict[str, Any]) -> None:
        match event["event"]:
            case "facts":
                run.facts, run.vllm = event["facts"], event["vllm"]
            case "outputs":
                if event["pass"] == len(run.passes):
                    run.passes.append({})
                run.passes[-1][event["phase"]] = event["requests"]
                run.counts[event["phase"]] = event["counts"]
                update(event["phase"])
            case "fault":
                run.faults.append(event)
            case "done" | "error":
                ended.update(event)

    update("starting the engine")
    run_isolated(
        "bench_prep.engine.process",
        {"engine": _arguments(folder, device), "passes": passes, "plant": plant},
        engine_environment(device, fastpath=fastpath),
        on_event,
        log,
    )
    lines = require_done(ended, log)
    run.not_used = next(
        (line.partition(NOT_USED)[2].strip(": ") for line in lines if NOT_USED in line), ""
    )
    return run


def require_done(last: dict[str, Any], log: Path) -> list[str]:
    """The lines of the log of an engine's process whose last event is `last`.

    Raises:
        BenchPrepError: the process failed; what it reported, with the end of its log, because
            vLLM's own processes say in the log alone what was wrong.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if last.get("event") == "done":
        return lines
    said = {"exit_code": 1, "message": "the engine's process ended early", "remedy": ""} | last
    told = [line for line in lines if "Error" in line or NOT_USED in line]
    shown = "".join(f"\n    {line[:200]}" for line in (told or lines)[-_LINES_SHOWN:])
    raise as_raised(
        said
        | {
            "message": f"{said['message']}; the end of its log:{shown}",
            "remedy": said["remedy"] or f"the whole log is in {log}",
        }
    )


def _arguments(folder: Path, device: str) -> dict[str, Any]:
    """Arguments of vLLM's `LLM`: on a device as people serve, on the CPU as it starts fastest."""
    common = {
        "model": str(folder),
        "tokenizer": str(folder / "tokenizer"),
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "seed": 0,
        "disable_log_stats": True,
        "limit_mm_per_prompt": {"image": 0, "video": 0},
        # Read by recurrent layers only; the other backends may need a compiler at run time.
        "additional_config": {"gdn_prefill_backend": "triton"},
    }
    if is_cpu(device):
        return common | {
            "max_num_batched_tokens": 256,
            "dtype": "float32",
            "block_size": 32,
            "enforce_eager": True,
            "gpu_memory_utilization": 0.3,
        }
    return common | {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.8}


def engine_environment(device: str, *, fastpath: bool) -> dict[str, str]:
    """The variables of the engine's processes, with the fast path or with it turned off.

    The plugin is loaded either way: vLLM keeps compiled and tuned kernels by the plugins' names,
    and other kernels' sums differ in the last bit.
    """
    given = child_environment(device)
    others = [name for name in given["VLLM_PLUGINS"].split(",") if name not in ("", PLUGIN)]
    return (
        {"VLLM_CPU_KVCACHE_SPACE": "1"}
        | given
        | {
            "VLLM_PLUGINS": ",".join([*others, PLUGIN]),
            SWITCH: "" if fastpath else "0",
            SELFCHECK: "",
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        | _tuned_kernels()
    )


def unpinned(environment: dict[str, Any]) -> dict[str, Any]:
    """The columns of an engine's worker with the processors of this process: on the CPU platform
    vLLM pins its worker to some of them, and the machine is the same one."""
    here = {"cpu_model": cpu_model()}
    if environment["platform"] == "cpu":
        here["device_name"] = here["cpu_model"]
    return environment | here


def _tuned_kernels() -> dict[str, str]:
    """Another process takes the kernels that the first one's Triton chose; the user's say wins.

    Triton keeps the choice beside the kernels (its `knobs.py` and `runtime/autotuner.py`). The
    folder is named because PyTorch otherwise moves it, in the middle of a process that compiles the
    model (`torch/_inductor/runtime/triton_heuristics.py`), and one that finds it compiled looks
    elsewhere. Each choice is said in the log.
    """
    home = os.environ.get("TRITON_HOME") or Path.home()
    own = {
        "TRITON_CACHE_AUTOTUNING": "1",
        "TRITON_CACHE_DIR": str(Path(home, ".triton", "cache")),
        "TRITON_PRINT_AUTOTUNING": "1",
    }
    return {name: os.environ.get(name, value) for name, value in own.items()}

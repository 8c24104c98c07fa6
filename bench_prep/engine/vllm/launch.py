"""How an engine of vLLM is started: what is checked first, its environment, its arguments."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep.child.device import child_environment, require_device
from bench_prep.child.launch import launched
from bench_prep.child.log_end import lines_of
from bench_prep.child.memory import require_engines_memory
from bench_prep.child.parent_end import Child
from bench_prep.engine.vllm.names import PLUGIN
from bench_prep.fastpath.log_lines import NOT_USED
from bench_prep.fastpath.plugin import SELFCHECK, SWITCH
from bench_prep.measure.machine import cpu_model
from bench_prep.provenance.cachedir import cache_dir, new_log
from bench_prep.provenance.timed_vllm import Source, verified_vllm
from bench_prep.stages import Stages


@dataclass(frozen=True)
class Begun:
    """A command that times the installed vLLM's engine, after its first stages.

    Attributes:
        run_id: what its rows have in common.
        started: UTC in ISO 8601.
        provenance: the columns of `timed_vllm.verified_vllm`.
        log: where the engine's process writes.
    """

    run_id: str
    started: str
    provenance: dict[str, Any]
    log: Path
    stages: Stages


def begin(command: str, device: str, max_model_len: int, console: Console) -> Begun:
    """The device is there, so is memory, and the installed vLLM is whole.

    Raises:
        BenchPrepError: whatever stops it.
    """
    require_device(device)
    require_engines_memory(max_model_len)
    stages = Stages(console)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run_id = uuid.uuid4().hex[:12]
    _, provenance = verified_vllm(Source(), device, stages)
    return Begun(run_id, started, provenance, new_log(f"{command}-{run_id}.log"), stages)


def launched_engine(
    module: str, job: Mapping[str, Any], environment: dict[str, str], log: Path
) -> AbstractContextManager[Child]:
    """A child that has an engine: vLLM's own processes say in the log alone what was wrong."""
    marks = ("Error", NOT_USED)
    return launched(module, job, environment, log, who="the engine's process", marks=marks)


def not_used_in(log: Path) -> str:
    """What the fast path said in an engine's log where it was not attached; else empty."""
    said = (line.partition(NOT_USED)[2] for line in lines_of(log) if NOT_USED in line)
    return next(said, "").strip(": ")


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
            # What the fast path did is in the log alone: no file of the user's keeps it away.
            "VLLM_CONFIGURE_LOGGING": "1",
            "VLLM_LOGGING_CONFIG_PATH": "",
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
    home = cache_dir()
    with suppress(RuntimeError):  # a user who has none
        home = Path.home()
    own = {
        "TRITON_CACHE_AUTOTUNING": "1",
        "TRITON_CACHE_DIR": str(Path(os.environ.get("TRITON_HOME") or home, ".triton", "cache")),
        "TRITON_PRINT_AUTOTUNING": "1",
    }
    return {name: os.environ.get(name, value) for name, value in own.items()}

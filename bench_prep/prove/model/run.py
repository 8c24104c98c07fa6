"""One engine of a model, with the fast path or without it: all phases, and what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_prep.child.device import is_cpu
from bench_prep.engine.vllm.arguments import engine_arguments
from bench_prep.engine.vllm.launch import engine_environment, launched_engine, not_used_in
from bench_prep.prove.model import events
from bench_prep.prove.model.compare import Outputs
from bench_prep.prove.model.events import Facts, Fault


@dataclass
class EngineRun:
    """What one engine did.

    Attributes:
        vllm: its version.
        facts: of `ProbedWorker.engine_facts`.
        passes: the outputs of each pass over all phases.
        counts: the fast path's counters after each phase of the last pass, since the engine's
            start; None: not attached.
        faults: one per planted wrong slot.
        not_used: what the fast path said when it was not attached.
    """

    vllm: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    passes: list[dict[str, list[dict[str, Any]]]] = field(default_factory=list)
    counts: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
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
    update("starting the engine")
    job = {"engine": _arguments(folder, device), "passes": passes, "plant": plant}
    environment = engine_environment(device, fastpath=fastpath)
    with launched_engine("bench_prep.prove.model.process", job, environment, log) as child:
        for event in child.events():
            match event:
                case Facts(facts, version):
                    run.facts, run.vllm = facts, version
                case events.Outputs(number, phase, requests, counts):
                    if number == len(run.passes):
                        run.passes.append({})
                    run.passes[-1][phase] = requests
                    run.counts[phase] = counts
                    update(phase)
                case Fault():
                    run.faults.append(event)
    run.not_used = not_used_in(log)
    return run


def _arguments(folder: Path, device: str) -> dict[str, Any]:
    """Arguments of vLLM's `LLM`: on a device as people serve, on the CPU as it starts fastest."""
    common = engine_arguments(folder, device, max_model_len=4096) | {
        "tokenizer": str(folder / "tokenizer"),
        "max_num_seqs": 8,
        "disable_log_stats": True,
    }
    if is_cpu(device):
        return common | {
            "max_num_batched_tokens": 256,
            "dtype": "float32",
            "block_size": 32,
            "enforce_eager": True,
        }
    return common | {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.8}

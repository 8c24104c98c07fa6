"""`prove source`: is the fast path exact on the installed vLLM's runner, on arbitrary traces?"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.child.device import child_environment, require_device
from bench_prep.child.launch import run_isolated
from bench_prep.errors import BenchPrepError, Inconclusive, as_raised
from bench_prep.fastpath.fingerprint import KNOWN_FILE
from bench_prep.files import check_replaceable, write_json
from bench_prep.provenance.cachedir import new_log
from bench_prep.provenance.timed_vllm import Source, prove_source
from bench_prep.stages import Stages, Update

#: An unknown source is added after so many steps by the fast path.
LEAST_DISPATCHED = 10_000


@dataclass
class _Watched:
    """What the process has sent so far."""

    state: dict[str, Any] = field(default_factory=dict)
    proven: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    begun: set[str] = field(default_factory=set)


def run_prove_source(
    steps: int,
    seed: int,
    device: str,
    *,
    add: bool,
    output: Path | None,
    command: str,
    console: Console,
) -> None:
    """Take at least `steps` steps of twins; write the proof, and with `add` know the source.

    Raises:
        OutputsDiffer: at the first difference; nothing is written.
        Inconclusive: too little was done for an unknown source to be added; the proof is written.
        BenchPrepError: whatever else stops the proof, with its exit code and its remedy.
    """
    for path in (output, KNOWN_FILE if add else None):
        if path is not None:
            check_replaceable(path)
    require_device(device)
    stages = Stages(console)
    verified, provenance = prove_source(Source(), device, stages)
    job = {
        "device": device,
        "steps": steps,
        "seed": seed,
        "add": add,
        "package_dir": str(verified.package_dir),
        "hashes": verified.python_hashes,
    }
    started = datetime.now(UTC).isoformat(timespec="seconds")
    stages.passed("seed", str(seed))
    seen = _run(job, stages)
    totals = seen.proven["totals"]
    _show(seen, stages)
    if output is not None:
        write_json(
            output,
            {
                "proof": "source",
                "bench_prep_version": __version__,
                "command": command,
                "started": started,
                **provenance,
                **seen.state["environment"],
                "fingerprint": seen.state["fingerprint"],
                "seed": seed,
                "variants": seen.state["variants"],
                "differences": 0,
                "seconds": round(seen.proven["seconds"], 1),
                **totals,
                "not_covered": seen.proven["missing"],
            },
        )
        stages.passed("written", str(output))
    if add:
        _add(seen, stages)


def _run(job: dict[str, Any], stages: Stages) -> _Watched:
    seen = _Watched()
    log = new_log(f"prove-source-{uuid.uuid4().hex[:12]}.log")
    stages.passed("log", str(log))
    with stages.running("prove") as update:
        update("starting vLLM")
        run_isolated(
            "bench_prep.prove.source.process",
            job,
            child_environment(job["device"]),
            lambda event: _watch(event, seen, job["steps"], stages, update),
            log,
        )
    if seen.error is not None:
        raise as_raised(seen.error)
    if not seen.proven:
        raise BenchPrepError("the process ended early", f"its whole output is in {log}")
    return seen


def _watch(
    event: dict[str, Any], seen: _Watched, steps: int, stages: Stages, update: Update
) -> None:
    match event["event"]:
        case "state":
            seen.state = event
            environment = event["environment"]
            stages.passed(
                "state",
                f"vLLM {environment['vllm_version']} on {environment['device_name']}; source "
                f"{event['fingerprint'][:12]}, "
                + ("unknown, admitted for this proof" if event["admitted"] else "known"),
            )
        case "progress":
            variant = event["variant"]
            if variant not in seen.begun:
                seen.begun.add(variant)
                count = len(seen.state["variants"])
                stages.passed("setting", f"{len(seen.begun)} of {count}: {variant}")
            update(f"{event['steps']} of {steps} steps; {variant}")
        case "proven":
            seen.proven = event
        case "error":
            seen.error = event


def _show(seen: _Watched, stages: Stages) -> None:
    totals, missing = seen.proven["totals"], seen.proven["missing"]
    fallbacks = sorted(totals["fallbacks"].items(), key=lambda item: -item[1])
    stages.passed(
        "equal",
        f"whole state identical before and after sampling in each of {totals['steps']} steps of "
        f"{len(seen.state['variants'])} settings, in {seen.proven['seconds']:.0f} s",
    )
    stages.passed("fast", f"{totals['dispatched']} steps by the fast path")
    stages.passed("own", "; ".join(f"{count} {reason}" for reason, count in fallbacks))
    rarest = min(totals["coverage"].items(), key=lambda item: item[1])
    stages.passed(
        "covered",
        f"not: {', '.join(missing)}"
        if missing
        else f"all {len(totals['coverage'])} operations and kinds of request; the rarest, "
        f"{rarest[0]}, {rarest[1]} times",
    )


def _add(seen: _Watched, stages: Stages) -> None:
    entry, digest = seen.proven["entry"], seen.state["fingerprint"]
    if entry is None:
        stages.passed("known", f"already, in {KNOWN_FILE}")
        return
    missing, dispatched = seen.proven["missing"], seen.proven["totals"]["dispatched"]
    if missing or dispatched < LEAST_DISPATCHED:
        lacking = ", ".join(missing) or f"only {dispatched} steps were by the fast path"
        raise Inconclusive(
            f"not added: {lacking}", f"more --steps, about {5 * LEAST_DISPATCHED} in all"
        )
    data = json.loads(KNOWN_FILE.read_text(encoding="utf-8"))
    data["sources"][digest] = entry
    write_json(KNOWN_FILE, data)
    stages.passed("added", f"vLLM {entry['vllm']} ({entry['platform']}) to {KNOWN_FILE}")

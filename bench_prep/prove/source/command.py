"""`prove source`: is the fast path exact on the installed vLLM's runner, on arbitrary traces?"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.child.device import child_environment, require_device
from bench_prep.child.launch import launched
from bench_prep.errors import Inconclusive
from bench_prep.fastpath.fingerprint import KNOWN_FILE
from bench_prep.files import check_replaceable, write_json
from bench_prep.prove.source.events import Begun, Progress, Proven
from bench_prep.provenance.cachedir import new_log
from bench_prep.provenance.timed_vllm import Source, verified_vllm
from bench_prep.stages import Stages

#: An unknown source is added after so many steps by the fast path.
LEAST_DISPATCHED = 10_000


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
    verified, provenance = verified_vllm(Source(), device, stages)
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
    begun, proven = _run(job, stages)
    _show(begun, proven, stages)
    if output is not None:
        write_json(
            output,
            {
                "proof": "source",
                "bench_prep_version": __version__,
                "command": command,
                "started": started,
                **provenance,
                **begun.environment,
                "fingerprint": begun.fingerprint,
                "seed": seed,
                "variants": begun.variants,
                "differences": 0,
                "seconds": round(proven.seconds, 1),
                **proven.totals,
                "not_covered": proven.missing,
            },
        )
        stages.passed("written", str(output))
    if add:
        _add(begun, proven, stages)


def _run(job: dict[str, Any], stages: Stages) -> tuple[Begun, Proven]:
    log = new_log(f"prove-source-{uuid.uuid4().hex[:12]}.log")
    stages.passed("log", str(log))
    begun, proven = None, None
    settings: set[str] = set()
    environment = child_environment(job["device"])
    with (
        stages.running("prove") as update,
        launched("bench_prep.prove.source.process", job, environment, log) as child,
    ):
        update("starting vLLM")
        for event in child.events():
            match event:
                case Begun(environment=columns):
                    begun = event
                    stages.passed(
                        "state",
                        f"vLLM {columns['vllm_version']} on {columns['device_name']}; source "
                        f"{event.fingerprint[:12]}, "
                        + ("unknown, admitted for this proof" if event.admitted else "known"),
                    )
                case Progress(variant, steps):
                    if variant not in settings and begun is not None:
                        settings.add(variant)
                        number = f"{len(settings)} of {len(begun.variants)}"
                        stages.passed("setting", f"{number}: {variant}")
                    update(f"{steps} of {job['steps']} steps; {variant}")
                case Proven():
                    proven = event
    assert begun is not None and proven is not None  # a child that is done has sent both
    return begun, proven


def _show(begun: Begun, proven: Proven, stages: Stages) -> None:
    totals, missing = proven.totals, proven.missing
    fallbacks = sorted(totals["fallbacks"].items(), key=lambda item: -item[1])
    stages.passed(
        "equal",
        f"whole state identical before and after sampling in each of {totals['steps']} steps of "
        f"{len(begun.variants)} settings, in {proven.seconds:.0f} s",
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


def _add(begun: Begun, proven: Proven, stages: Stages) -> None:
    entry, digest = proven.entry, begun.fingerprint
    if entry is None:
        stages.passed("known", f"already, in {KNOWN_FILE}")
        return
    missing, dispatched = proven.missing, proven.totals["dispatched"]
    if missing or dispatched < LEAST_DISPATCHED:
        lacking = ", ".join(missing) or f"only {dispatched} steps were by the fast path"
        raise Inconclusive(
            f"not added: {lacking}", f"more --steps, about {5 * LEAST_DISPATCHED} in all"
        )
    data = json.loads(KNOWN_FILE.read_text(encoding="utf-8"))
    data["sources"][digest] = entry
    write_json(KNOWN_FILE, data)
    stages.passed("added", f"vLLM {entry['vllm']} ({entry['platform']}) to {KNOWN_FILE}")

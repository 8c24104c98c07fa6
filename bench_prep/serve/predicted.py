"""What a component's result predicts for the service, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_prep.errors import UsageError
from bench_prep.results.read import load, other_command
from bench_prep.results.row import Row
from bench_prep.serve.figures import Judged
from bench_prep.settings import AS_PLUGIN, OUR_CANDIDATE

_GIVE = "give the CSV of bench-prep engine or bench-prep run"


@dataclass(frozen=True)
class Predicted:
    """Saved per step by a result of `bench-prep run` or `engine`, in milliseconds.

    As the service's own saving, (before + after) / 2 - candidate: `saved_ms` of such a result is
    less, of the faster baseline.

    Attributes:
        host_ms: what the preparation keeps the host busy for less: if nothing else were waited
            for, each token would come so much earlier.
        step_ms: how much shorter the engine's own step was, where the result has it.
        where: the file and the run.
        model: SHA-256 of the engine's configuration; "" where there is none or it is unknown.
        machine: the device and the vLLM that it is of.
        doubt: why it says nothing of the service.
    """

    host_ms: float
    step_ms: float | None
    where: str
    model: str = ""
    machine: tuple[str, str] = ("", "")
    doubt: str = ""

    @property
    def best(self) -> float:
        """The engine's own step knows who waits; the host's saving is the most there can be."""
        return self.host_ms if self.step_ms is None else self.step_ms

    def of(self, model: str, arguments: str, environment: Mapping[str, Any]) -> Predicted:
        """What it predicts for this model, served with `arguments` on this machine and vLLM.

        Another model's step is no prediction, and nothing of another machine is.
        """
        here = str(environment.get("device_name")), str(environment.get("vllm_version"))
        device, version = self.machine
        said = f"{device or 'an unknown device'} and vLLM {version or '(unknown)'}"
        doubt = "" if here == self.machine else f"it is of {said}"
        if self.step_ms is None or (self.model == model and not arguments):
            return replace(self, doubt=doubt)
        whose = "of another model" if self.model else "of a model that it does not name"
        if self.model == model:
            whose = "without these --serve-args"
        where = f"{self.where}; the step there is {whose}"
        return replace(self, step_ms=None, where=where, doubt=doubt)


def predicted_by(path: Path) -> Predicted:
    """The last run of a result CSV.

    Raises:
        UsageError: the file cannot be read, has no row of the host's clock, is of another candidate
            than the fast path, or of one whose outputs differed.
    """
    if path.is_file() and (other := other_command(path)):
        raise UsageError(f"{path} is of bench-prep {other}", _GIVE)
    rows = load(path)
    hosts = [row for row in rows if row.clock == "host"]
    if not hosts:
        raise UsageError(f"{path} has no row of the host's clock", _GIVE)
    host = hosts[-1]
    if host.candidate not in (OUR_CANDIDATE, AS_PLUGIN):
        raise UsageError(f"the last run of {path} is not of the fast path", _GIVE)
    host_ms = _saved(host)
    if not host.equal or host_ms is None:
        raise UsageError(f"the last run of {path} has no saving with equal outputs", _GIVE)
    steps = [row for row in rows if row.clock == "step" and row.run == host.run and row.run]
    step = steps[-1] if steps else None
    said = "" if host.verdict == "faster" else f", {host.verdict or 'without a verdict'}"
    return Predicted(
        host_ms,
        None if step is None else _saved(step),
        f"{path.name}, run {host.run or 'unknown'}{said}",
        "" if step is None else step.model_config_sha256,
        (host.device_name, host.vllm_version),
    )


def _saved(row: Row) -> float | None:
    before, candidate, after = row.baseline_before_ms, row.candidate_ms, row.baseline_after_ms
    if before is None or candidate is None or after is None:
        return None
    return (before + after) / 2 - candidate


def prediction(predicted: Predicted, measured: Judged, doubt: str = "") -> str:
    """Whether the two agree within the measured interval, and if not, why that can be.

    `doubt`: why what was measured says nothing.
    """
    if doubt := predicted.doubt or doubt:
        return f"not comparable: {doubt}"
    host, low, high = predicted.host_ms, measured.saved_low_ms, measured.saved_high_ms
    if low is None or high is None:
        return "not comparable: too few requests for an interval"
    if low <= predicted.best <= high and low <= 0 <= high:
        return "neither confirmed nor contradicted: no saving at all is in the interval too"
    if low <= predicted.best <= high:
        by = "the engine's step" if predicted.step_ms is not None else "the host's saving"
        return f"agrees: {by} is within the measured interval"
    if measured.saved_ms < predicted.best:
        if predicted.step_ms is None and high < host:
            return (
                "less than predicted: part of the saving is hidden behind the device, or behind "
                "the server's other processes (bench-prep steps shows who waits)"
            )
        return (
            "less than predicted: a token of the service also waits for what the engine's step "
            "does not have (other processes, the stream to the client)"
        )
    return (
        "more than predicted: inside a server the same preparation takes longer than where it was "
        "timed (caches, the interpreter's lock)"
    )

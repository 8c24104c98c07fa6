"""What a component's result predicts for the service, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from bench_prep.errors import UsageError
from bench_prep.report.store import load
from bench_prep.service.figures import Judged


@dataclass(frozen=True)
class Predicted:
    """Saved per step by a result of `bench-prep run` or `engine`, in milliseconds.

    Attributes:
        host_ms: what the preparation keeps the host busy for less: if nothing else were waited
            for, each token would come so much earlier.
        step_ms: how much shorter the engine's own step was, where the result has it.
        where: the file and the run.
        model: SHA-256 of the engine's configuration; "" where there is none or it is unknown.
    """

    host_ms: float
    step_ms: float | None
    where: str
    model: str = ""

    @property
    def best(self) -> float:
        """The engine's own step knows who waits; the host's saving is the most there can be."""
        return self.host_ms if self.step_ms is None else self.step_ms

    def of(self, model: str) -> Predicted:
        """What it predicts for this model: another one's step is no prediction."""
        if self.step_ms is None or self.model == model:
            return self
        whose = "another model's" if self.model else "of a model that it does not name"
        return replace(self, step_ms=None, where=f"{self.where}; the step there is {whose}")


def predicted_by(path: Path) -> Predicted:
    """The last run of a result CSV.

    Raises:
        UsageError: the file cannot be read, or has no row of the host's clock.
    """
    frame = load(path)
    if frame.empty or "host" not in set(frame["clock"]):
        raise UsageError(
            f"{path} has no row of the host's clock",
            "give the CSV of bench-prep engine or bench-prep run",
        )
    last = frame
    if frame["run"].notna().any():
        last = frame[frame["run"] == frame[frame["clock"] == "host"]["run"].iloc[-1]]
    saved = last.drop_duplicates("clock", keep="last").set_index("clock")["saved_ms"]
    step = saved.get("step")
    return Predicted(
        float(saved["host"]),
        None if step is None or pd.isna(step) else float(step),
        f"{path.name}, run {last['run'].iloc[-1]}",
        str(last["model_config_sha256"].iloc[-1]),
    )


def prediction(predicted: Predicted, measured: Judged, doubt: str = "") -> str:
    """Whether the two agree within the measured interval, and if not, why that can be.

    `doubt`: why what was measured says nothing.
    """
    if doubt:
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

"""bench-prep beside what people use: the same pairs, the same time, and who is wrong how often.

    pip install 'bench-prep[peers]' torch
    python benchmarks/peers.py --runs 60 --seconds 4 --output peers.csv

Each tool gets an equal pair and a pair whose candidate has 2 % more work (the work of
`bench-prep calibrate`), `--seconds` for both arms together, its documented practice and the order
in which its users run it: the baseline, then the candidate. Where a tool has no rule of its own,
1 % of difference counts, which is bench-prep's margin here. All tools take turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One thread, as in `bench-prep run`; before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import mannwhitneyu

from bench_prep.calibrate.conditions import CONDITIONS
from bench_prep.calibrate.tally import Share
from bench_prep.calibrate.trial import WORKS, Cell, settle_planted
from bench_prep.calibrate.workload import Work, units_of
from bench_prep.measure.machine import cpu_model
from bench_prep.settings import Method

#: A difference of this many per cent counts where a tool leaves that to its user.
MARGIN_PCT = 1.0
MARGIN = MARGIN_PCT / 100
P_VALUE = 0.01
EFFECTS_PCT = (0.0, 2.0)


@dataclass
class Pair:
    """Two arms: the work, the candidate's slow-down in per cent, and what draws the rest."""

    work: Work
    effect_pct: float
    rng: np.random.Generator

    @property
    def units(self) -> tuple[int, int]:
        """Of the baseline and of the candidate."""
        return self.work.units, units_of(self.work, 1.0, self.effect_pct / 100)


Verdicts = dict[str, str]


def larger(baseline: float, candidate: float) -> str:
    """The verdict by a threshold on two numbers."""
    if candidate > baseline * (1 + MARGIN):
        return "slower"
    return "faster" if baseline > candidate * (1 + MARGIN) else "same"


def by_order(baseline: float, candidate: float) -> str:
    """The verdict of two numbers that differ as soon as they are not equal."""
    if baseline == candidate:
        return "same"
    return "slower" if candidate > baseline else "faster"


#: Green: within 1 % of the best one (`color_segment` in torch/utils/benchmark/utils/compare.py).
BEST = "\033[92m"
ESCAPE = re.compile("\033\\[[0-9]+m")


class Torch:
    """`torch.utils.benchmark`: `Timer.blocked_autorange` and `Compare`, as in its recipe."""

    rules = ("colours of Compare", "trimmed figures of Compare")

    def __init__(self, seconds: float) -> None:
        from torch.utils import benchmark

        self.benchmark = benchmark
        self.seconds = seconds

    def __call__(self, pair: Pair) -> Verdicts:
        measured = [
            self.benchmark.Timer(
                "work(units)",
                globals={"work": pair.work, "units": units},
                label="step",
                sub_label="step",
                description=arm,
            ).blocked_autorange(min_run_time=self.seconds / 2)
            for arm, units in zip(("baseline", "candidate"), pair.units, strict=True)
        ]
        compare = self.benchmark.Compare(measured)
        compare.trim_significant_figures()
        compare.colorize(rowwise=True)
        row = next(line for line in str(compare).splitlines() if "\033[" in line)
        cells = row.split("  |  ")[1:]
        figures = [float(ESCAPE.sub("", cell)) for cell in cells]
        if all(BEST in cell for cell in cells):
            coloured = "same"
        else:
            coloured = "slower" if BEST in cells[0] else "faster"
        return dict(zip(self.rules, (coloured, by_order(*figures)), strict=True))


class DoBench:
    """`triton.testing.do_bench`, the median; the two numbers differ by more than 1 %."""

    rules = ("medians 1 % apart",)

    def __init__(self, seconds: float) -> None:
        from triton.testing import do_bench

        self.do_bench = do_bench
        self.milliseconds = int(1e3 * seconds / 2)

    def __call__(self, pair: Pair) -> Verdicts:
        baseline, candidate = (
            self.do_bench(
                lambda units=units: pair.work(units), rep=self.milliseconds, return_mode="median"
            )
            for units in pair.units
        )
        return {self.rules[0]: larger(baseline, candidate)}


class Blocks:
    """Two blocks of steps, one per arm, as in a script of one's own."""

    rules = (
        "means 1 % apart",
        "medians 1 % apart",
        f"Mann-Whitney, p < {P_VALUE}",
    )

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, pair: Pair) -> Verdicts:
        blocks = [self._block(pair.work, units) for units in pair.units]
        means, medians = ([function(b) for b in blocks] for function in (np.mean, np.median))
        differ = mannwhitneyu(*blocks).pvalue < P_VALUE
        return {
            self.rules[0]: larger(*means),
            self.rules[1]: larger(*medians),
            self.rules[2]: by_order(*medians) if differ else "same",
        }

    def _block(self, work: Work, units: int) -> list[int]:
        synchronize = (lambda: None) if work.device is None else work.device.synchronize
        times = []
        end = time.monotonic() + self.seconds / 2
        while time.monotonic() < end:
            synchronize()
            start = time.perf_counter_ns()
            work(units)
            synchronize()
            times.append(time.perf_counter_ns() - start)
        return times[len(times) // 20 :]  # warm-up


SETUP = (
    "import numpy as np; from bench_prep.calibrate.trial import WORKS; "
    "work = WORKS['host'](np.random.default_rng({seed}))"
)


class Fitted:
    """A tool with processes of its own: how much of the time their start takes is measured."""

    def __init__(self, seconds: float) -> None:
        self.each_s = seconds / 2
        self._kept = tempfile.TemporaryDirectory(prefix="peers-")  # as long as the tool
        self.folder = Path(self._kept.name)

    def run(self, *command: str, check: bool = True, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=os.environ | env,
            capture_output=True,
            text=True,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout


class PyPerf(Fitted):
    """`pyperf timeit` of each arm and `pyperf compare_to`, with its t-test.

    Its defaults are 20 processes and 3 values of 0.1 s of each; there are as many processes as
    fit into the time, at least two. `--min-speed` is its option for a margin.
    """

    rules = ("compare_to", f"compare_to --min-speed {MARGIN_PCT:g}")
    LOOPS = 40

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        taken = []
        for processes in (1, 3):
            start = time.monotonic()
            self._time("fit.json", 1, HOST_UNITS, processes)
            taken.append(time.monotonic() - start)
        process_s = (taken[1] - taken[0]) / 2
        self.processes = max(2, round((self.each_s - (taken[0] - process_s)) / process_s))

    def _time(self, file: str, seed: int, units: int, processes: int) -> None:
        (self.folder / file).unlink(missing_ok=True)
        self.run(
            *("pyperf", "timeit", "-q", "--name", "step", "-p", str(processes)),
            *("-l", str(self.LOOPS), "-o", file, "-s", SETUP.format(seed=seed), f"work({units})"),
        )

    def __call__(self, pair: Pair) -> Verdicts:
        seed = int(pair.rng.integers(1 << 31))
        files = ("baseline.json", "candidate.json")
        for file, units in zip(files, pair.units, strict=True):
            self._time(file, seed, units, self.processes)
        found = {}
        for rule, more in zip(self.rules, ((), ("--min-speed", f"{MARGIN_PCT:g}")), strict=True):
            text = self.run("pyperf", "compare_to", *more, *files)
            words = [word for word in ("faster", "slower") if word in text]
            if "ot significant" in text:
                found[rule] = "same"
            elif words:
                found[rule] = words[0]
            else:  # "no change": significant, and no difference in two decimals
                found[rule] = "same"
        return found


class PytestBenchmark(Fitted):
    """`pytest-benchmark`: a run for each arm, compared by the checks of `--benchmark-compare-fail`;
    what would fail the other way round is called faster."""

    rules = (f"min:{MARGIN_PCT:g}%", f"mean:{MARGIN_PCT:g}%", f"median:{MARGIN_PCT:g}%")

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        (self.folder / "test_step.py").write_text(
            "import os\n" + SETUP.format(seed="int(os.environ['SEED'])").replace("; ", "\n") + "\n"
            "def test_step(benchmark):\n    benchmark(work, int(os.environ['UNITS']))\n"
        )
        self.timed_s = 0.2
        start = time.monotonic()
        self._time(1, HOST_UNITS)
        self.timed_s = max(0.2, self.each_s - (time.monotonic() - start - self.timed_s))

    def _time(self, seed: int, units: int) -> dict[str, float]:
        self.run(
            *("pytest", "-q", "-p", "no:cacheprovider", "test_step.py"),
            *("--benchmark-disable-gc", "--benchmark-warmup=on", "--benchmark-json=step.json"),
            "--benchmark-warmup-iterations=100",
            f"--benchmark-max-time={self.timed_s:.2f}",
            SEED=str(seed),
            UNITS=str(units),
        )
        stats: dict[str, float] = json.loads((self.folder / "step.json").read_text())["benchmarks"][
            0
        ]["stats"]
        return stats

    def __call__(self, pair: Pair) -> Verdicts:
        from pytest_benchmark.utils import parse_compare_fail

        seed = int(pair.rng.integers(1 << 31))
        baseline, candidate = (self._time(seed, units) for units in pair.units)
        found = {}
        for rule in self.rules:
            check = parse_compare_fail(rule)
            slower, faster = check.fails(candidate, baseline), check.fails(baseline, candidate)
            found[rule] = "slower" if slower else "faster" if faster else "same"
        return found


class BenchPrep:
    """`bench_prep.measure.comparison.settle`, which ends earlier where it knows enough."""

    rules = (f"margin {MARGIN_PCT:g} %",)

    def __init__(self, seconds: float) -> None:
        self.method = Method(margin=MARGIN, budget_s=seconds)

    def __call__(self, pair: Pair) -> Verdicts:
        cell = Cell(CONDITIONS["none"], pair.effect_pct)
        result = settle_planted(pair.rng, pair.work, cell, self.method)
        return {self.rules[0]: str(result.verdict)}


HOST_UNITS = WORKS["host"](np.random.default_rng(0)).units

#: Name -> the tool, the packages whose versions are printed, the work that it is for.
TOOLS: dict[str, tuple[Callable[[float], Any], tuple[str, ...], tuple[str, ...]]] = {
    "bench-prep": (BenchPrep, ("bench-prep", "scipy"), ("host", "device")),
    "torch.utils.benchmark": (Torch, ("torch",), ("host", "device")),
    "triton.testing.do_bench": (DoBench, ("triton",), ("device",)),
    "pyperf": (PyPerf, ("pyperf",), ("host",)),
    "pytest-benchmark": (PytestBenchmark, ("pytest-benchmark", "pytest"), ("host",)),
    "two blocks": (Blocks, ("numpy", "scipy"), ("host", "device")),
}


def measure(
    work: str, names: list[str], runs: int, seconds: float, seed: int, output: Path
) -> None:
    """Add a row for each rule, pair and run; the file is replaced as a whole each time."""
    tools = {name: TOOLS[name][0](seconds) for name in names}
    rows = pd.read_csv(output).to_dict("records") if output.exists() else []
    about = {
        "work": work,
        "seconds_given": seconds,
        "seed": seed,
        "machine": cpu_model(),
        "python": platform.python_version(),
        "versions": versions(names),
        "command": " ".join(["python", "benchmarks/peers.py", *sys.argv[1:]]),
    }
    for run in range(runs):
        for effect in EFFECTS_PCT:
            for number, (name, tool) in enumerate(tools.items()):
                rng = np.random.default_rng([seed, run, round(effect * 1000), number])
                pair = Pair(WORKS[work](rng), effect, rng)
                start = time.monotonic()
                found = tool(pair)
                taken = time.monotonic() - start
                rows += [
                    {"tool": name, "rule": rule, "effect_pct": effect, "run": run}
                    | {"verdict": verdict, "seconds": round(taken, 3)}
                    | about
                    for rule, verdict in found.items()
                ]
                made = output.with_name(f".{output.name}.{os.getpid()}.tmp")
                pd.DataFrame(rows).to_csv(made, index=False)
                made.replace(output)
        print(f"run {run + 1} of {runs}", flush=True)


def versions(names: list[str]) -> str:
    found = {}
    for package in dict.fromkeys(package for name in names for package in TOOLS[name][1]):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "?"
    return " ".join(f"{package}=={version}" for package, version in found.items())


def show(frame: pd.DataFrame, console: Console) -> None:
    """False alarms on equal arms; a planted 2 % missed, or called faster."""
    for (work, given), part in frame.groupby(["work", "seconds_given"]):
        table = Table(
            title=f"work on the {work}, {given:g} s for a verdict, {EFFECTS_PCT[1]:g} % planted",
            caption="false: a difference between equal arms; missed: not called slower; below a "
            "count the exact 95 % interval of its share, in per cent; s: median seconds",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for name in ("tool", "differs by"):
            table.add_column(name)
        for name in ("runs", "false", "missed", "faster", "open", "s"):
            table.add_column(name, justify="right")
        for (tool, rule), group in part.groupby(["tool", "rule"], sort=False):
            equal, planted = (group[group["effect_pct"] == effect] for effect in EFFECTS_PCT)
            false = equal["verdict"].isin(["faster", "slower"]).sum()
            table.add_row(
                str(tool),
                str(rule),
                str(len(equal)),
                cell(int(false), len(equal)),
                cell(int((planted["verdict"] != "slower").sum()), len(planted)),
                str((planted["verdict"] == "faster").sum()),
                str((group["verdict"] == "inconclusive").sum()),
                f"{statistics.median(group['seconds']):.1f}",
            )
        console.print(table)
        for text in part["versions"].unique():
            console.print(f"{text}, {part['machine'].iloc[0]}", highlight=False)


def cell(hits: int, trials: int) -> str:
    low, high = (f"{100 * end:.1f}" for end in Share(hits, trials).interval)
    return f"{hits}\n{low}-{high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="of each pair and tool")
    parser.add_argument("--seconds", type=float, default=4.0, help="for a verdict of each tool")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", choices=sorted(WORKS), default="host")
    parser.add_argument("--tools", help=f"with commas: {','.join(TOOLS)}")
    parser.add_argument("--output", type=Path, default=Path("peers.csv"))
    parser.add_argument("--show", type=Path, nargs="+", help="only the table of such files")
    options = parser.parse_args()
    if options.show:
        if missing := [str(file) for file in options.show if not file.is_file()]:
            parser.error(f"no such file: {', '.join(missing)}")
        show(pd.concat([pd.read_csv(file) for file in options.show]), Console(width=100))
        return
    names = options.tools.split(",") if options.tools else list(TOOLS)
    if unknown := set(names) - set(TOOLS):
        parser.error(f"no such tool: {', '.join(sorted(unknown))}")
    for name in [name for name in names if options.work not in TOOLS[name][2]]:
        needs = " or ".join(TOOLS[name][2])
        print(f"{name} is left out: it is here for work on the {needs}")
        names.remove(name)
    absent = [one for one in versions(names).split() if one.endswith("==?")]
    if absent:
        missing = ", ".join(one.removesuffix("==?") for one in absent)
        parser.error(f"not installed: {missing}; pip install 'bench-prep[peers]' torch")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure(options.work, names, options.runs, options.seconds, options.seed, options.output)
    except KeyboardInterrupt:
        print("interrupted; what is finished is in the file")
    if options.output.exists():
        show(pd.read_csv(options.output), Console(width=100))


if __name__ == "__main__":
    main()

"""Runs of `bench-prep serve`, half of them interrupted: what do they leave behind?

    python -m tests.serve.leftovers [--runs 20] [--seed N]

Each run serves a tiny model. An interrupted one is stopped at a drawn moment: by a signal to
bench-prep, or by one that kills it or one of the server's processes. Afterwards there must be no
process of the run and no new file in /tmp, in /dev/shm and in the output's folder but the results
and their lock, which stays (`report.store.locked`).
What bench-prep could not remove when it was killed itself is removed by the next run.

Other programs may use these folders too; to be alone in them:

    unshare --mount sh -c 'mount -t tmpfs none /tmp && mount -t tmpfs none /dev/shm && python ...'
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

#: What is stopped, and how.
KINDS = (
    ("bench-prep", signal.SIGINT),
    ("bench-prep", signal.SIGTERM),
    ("bench-prep", signal.SIGKILL),
    ("a process of the server", signal.SIGKILL),
)
ARGUMENTS = (
    *("LlamaForCausalLM", "--device", "cpu", "--tiers", "4-8", "--requests", "1"),
    *("--output-tokens", "4", "--serve-args", "--enforce-eager"),
)
MARK = "BENCH_PREP_LEFTOVERS"
FOLDERS = (Path("/tmp"), Path("/dev/shm"))
#: PyTorch's cache of compiled code, which others use again.
KEPT = re.compile(r"torchinductor_.*")
#: A killed process is not gone at once.
GRACE_S = 10.0


@dataclass(frozen=True)
class Ended:
    """How a run ended and what is wrong with it, in words."""

    code: int
    seconds: float
    arms: int
    wrong: list[str]


def marked(mark: str) -> list[psutil.Process]:
    """Everything alive that a run has started, in whatever session."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.status() != psutil.STATUS_ZOMBIE and one.environ().get(MARK) == mark:
                found.append(one)
    return found


def files() -> set[Path]:
    return {one for folder in FOLDERS for one in folder.iterdir() if not KEPT.fullmatch(one.name)}


def stop(process: subprocess.Popen[str], kind: tuple[str, signal.Signals], mark: str) -> None:
    what, how = kind
    if what == "bench-prep":
        process.send_signal(how)
        return
    while process.poll() is None:  # between two servers there is none
        if parts := [one for one in marked(mark) if is_servers(one)]:
            random.choice(parts).send_signal(how)
            return
        time.sleep(0.5)


def is_servers(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "VLLM::" in process.name() or "server_process" in " ".join(process.cmdline())
    return False


def run(
    folder: Path, kind: tuple[str, signal.Signals] | None, after_s: float, before: set[Path]
) -> Ended:
    """One run, stopped `after_s` seconds after its start if a kind is given."""
    mark, output, began = uuid.uuid4().hex, folder / "serve.csv", time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench_prep", "serve", *ARGUMENTS, "--output", str(output)],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if kind is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        if process.poll() is None:
            stop(process, kind, mark)
    said = process.communicate()[0]
    seconds = time.monotonic() - began
    wrong = []
    killed = kind == ("bench-prep", signal.SIGKILL)
    deadline = time.monotonic() + GRACE_S
    at_once = [] if killed else marked(mark)
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if at_once or left:
        wrong.append(f"processes: {[(one.pid, one.name()) for one in at_once or left]}")
    for one in left:
        one.kill()
    more = sorted(str(one) for one in files() - before)
    if more and not killed:
        wrong.append(f"files: {more}")
    arms = len(re.findall(r"ready after", said))
    wrong += of_results(folder, arms, process.returncode, killed)
    if kind is None and process.returncode != 4:  # one request is too few for a verdict
        wrong.append(f"exit code {process.returncode}: {said[-500:]}")
    if "Traceback" in said:
        wrong.append(said[-2000:])
    return Ended(process.returncode, seconds, arms, wrong)


def of_results(folder: Path, arms: int, code: int, killed: bool) -> list[str]:
    """What is wrong with the output's folder; it is emptied. Finished arms must be there."""
    (folder / ".serve.csv.lock").unlink(missing_ok=True)
    found = sorted(folder.iterdir())
    output = folder / "serve.csv"
    wrong = []
    if output.exists():
        frame = pd.read_csv(output)
        has = sum(frame[f"{arm}_tokens"].notna().all() for arm in _ARMS)
        beside = [f"serve.{one}.requests.jsonl.gz" for one in frame["run"].unique()]
        if has < arms or bool(frame["partial"].all()) != (has < len(_ARMS)):
            wrong.append(f"{has} arms in the rows, {arms} were finished")
        if [one.name for one in found] != sorted(["serve.csv", *beside]):
            wrong.append(f"the output's folder has {[one.name for one in found]}")
    elif found or (arms and not killed):
        wrong.append(f"{arms} arms were finished, and there is {[one.name for one in found]}")
    for one in found:
        one.unlink()
    return wrong


_ARMS = ("baseline_before", "candidate", "baseline_after")


def check(runs: int, seed: int) -> list[str]:
    """What was left, of all runs; every second one is interrupted."""
    random.seed(seed)
    # In the background of a shell it is ignored, and would be by what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(f"seed {seed}", flush=True)
    wrong, last = [], 60.0
    with tempfile.TemporaryDirectory(dir=os.environ.get("HOME")) as place:
        before = files()
        for number in range(runs):
            kind = KINDS[number // 2 % len(KINDS)] if number % 2 else None
            after_s = random.uniform(0, 0.9 * last)
            ended = run(Path(place), kind, after_s, before)
            if kind is None:
                last = ended.seconds
            how = "whole" if kind is None else f"{kind[1].name} to {kind[0]} at {after_s:.1f} s"
            print(
                f"{number + 1:2} {how}: exit code {ended.code} after {ended.seconds:.0f} s, "
                f"{ended.arms} servers finished; {'; '.join(ended.wrong) or 'nothing left'}",
                flush=True,
            )
            wrong += ended.wrong
        # The last one that was killed is cleaned up after by the next run, of whatever command.
        subprocess.run([sys.executable, "-c", _NEXT], check=True)
        wrong += [f"in the end: {one}" for one in sorted(map(str, files() - before))]
    return wrong


_NEXT = "from bench_prep.child.launch import temporary_folder\nwith temporary_folder(): pass"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    found = check(given.runs, given.seed)
    print(*found or ["nothing was left"], sep="\n")
    sys.exit(bool(found))

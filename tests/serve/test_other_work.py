"""What other processes keep busy is theirs, and what ours do is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from bench_prep.serve.other_work import Meter, own_s

BUSY = "while True: pass"
ORPHAN = """
import subprocess, sys
started = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
print(started.pid)
"""
#: Ticks of the kernel's counters, in seconds, at both ends of a span.
TICKS = 0.1


def spent(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def wait_until_spent(pid: int, seconds: float) -> None:
    while spent(pid) < seconds:
        time.sleep(0.05)


def test_a_process_of_another_parent_is_other_work() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN, BUSY], capture_output=True, check=True)
    pid = int(done.stdout)
    try:
        began, before, meter = time.perf_counter(), spent(pid), Meter()
        wait_until_spent(pid, before + 0.5)
        after, found = spent(pid), meter.other_work()
        elapsed = time.perf_counter() - began
    finally:
        os.kill(pid, signal.SIGKILL)
    assert found is not None and found.processors == psutil.cpu_count()
    assert after > before
    assert found.busy * elapsed > after - before - TICKS


def test_what_descends_from_here_is_not() -> None:
    before = own_s()
    with subprocess.Popen([sys.executable, "-c", BUSY]) as child:
        wait_until_spent(child.pid, 0.5)
        used = spent(child.pid)
        running = own_s() - before
        child.kill()
    ended = own_s() - before
    assert used > 0
    assert running > used - TICKS and ended > used - TICKS

"""A process that keeps a processor and the memory busy, on and off, until its parent is gone.

    python -m bench_prep.calibrate.load PERIOD_S

It writes a line as soon as it works.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

#: Of each array: far more than a processor's share of the last cache.
_BYTES = 64 << 20


@contextmanager
def periodic_load(period_s: float) -> Iterator[int]:
    """Meanwhile a second process works for half of every `period_s` seconds; its identifier."""
    command = [sys.executable, "-m", "bench_prep.calibrate.load", str(period_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"the load ended with exit code {process.wait()}")
            yield process.pid
        finally:
            process.kill()


def _work(period_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent, which ends us
    parent = os.getppid()
    source = np.ones(_BYTES // 8)
    target = np.zeros_like(source)
    print("working", flush=True)
    while os.getppid() == parent:
        until = time.monotonic() + period_s / 2
        while time.monotonic() < until:
            np.multiply(source, 1.0001, out=target)
            sum(range(20_000))
        time.sleep(period_s / 2)


if __name__ == "__main__":
    _work(float(sys.argv[1]))

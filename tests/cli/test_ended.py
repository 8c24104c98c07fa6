"""Being ended by a signal is like Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest


def wait_until_idle(pid: int) -> None:
    """Until the process has used no processor time for half a second."""
    before, used = -1.0, 0.0
    while used != before:
        before = used
        time.sleep(0.5)
        times = psutil.Process(pid).cpu_times()
        used = times.user + times.system


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(sent: signal.Signals) -> None:
    waiting = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "from bench_prep.cli.app import main; import sys;"
            "sys.argv = ['bench-prep', 'check-log', '-'];"
            "print('begins', flush=True); main()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    waiting.stdout.readline()
    wait_until_idle(waiting.pid)  # it reads its standard input by then
    waiting.send_signal(sent)
    _, said = waiting.communicate(timeout=200)
    assert waiting.returncode == 130
    assert "interrupted" in said


def test_nohup_is_kept() -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "from bench_prep.cli.app import main; sys.argv = ['bench-prep', '--version'];\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""A child that sends the events it is given, then ends as it is told; each end is a real one."""

import json
import os
import signal
from pathlib import Path

from bench_prep.child.channel import EVENTS_FD, Done, emit, read_job

#: Names the file with the lines to send and the end.
SPEAKS = "BENCH_PREP_TEST_SPEAKS"

if __name__ == "__main__":
    read_job()
    told = json.loads(Path(os.environ[SPEAKS]).read_text())
    for line in told["lines"]:
        os.write(int(os.environ[EVENTS_FD]), line.encode() + b"\n")
    print("the last word", flush=True)
    if told["end"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if told["end"] == "done":
        emit(Done())
    os._exit(3 if told["end"] == "exits" else 0)

"""What a launched process has started, whatever its session. Standard library only."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

#: What everything inherits that a launched process starts, in whatever session.
LAUNCH_ID = "BENCH_PREP_LAUNCH_ID"
_TRIES = 50


def in_session(leader: int, launch_id: str) -> list[int]:
    """What is alive in the session of `leader`, or has inherited the identifier of its launch."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # After the command's closing bracket: state, parent, group, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and (
                int(session) == leader
                or (launch_id and launch_id.encode() in (entry / "environ").read_bytes())
            ):
                found.append(int(entry.name))
    return found


def is_resource_tracker(pid: int) -> bool:
    """Python's, of the `multiprocessing` package: it removes shared memory that nobody uses."""
    with suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def kill(pid: int) -> None:
    """At once; it may have ended."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def kill_others() -> None:
    """Kill what this process, the leader of its session, has started, but resource trackers.

    They end by themselves, and remove the shared memory that vLLM's killed processes leave behind.
    """
    for _ in range(_TRIES):  # what was seen may have started something that was not
        left = [
            pid
            for pid in in_session(os.getpid(), os.environ.get(LAUNCH_ID, ""))
            if pid != os.getpid() and not is_resource_tracker(pid)
        ]
        if not left:
            return
        for pid in left:
            kill(pid)

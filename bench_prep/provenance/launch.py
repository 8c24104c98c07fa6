"""Launch: a fresh interpreter in a new empty folder, from which no stray vllm can be imported."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench_prep.errors import BenchPrepError, Missing
from bench_prep.provenance.child import EVENTS_FD

#: Each of these can put other modules in front of the installed ones.
REMOVED_FROM_ENVIRONMENT = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONUSERBASE")
_LAUNCH_ID = "BENCH_PREP_LAUNCH_ID"
_GRACE_S = 5.0

Event = dict[str, Any]


def run_isolated(
    module: str,
    job: dict[str, Any],
    env_extra: dict[str, str],
    on_event: Callable[[Event], None],
    log: Path,
) -> int:
    """Run `python -P -s -m module` isolated; the return code, negative for a signal.

    The child works in a new empty folder under /tmp that is removed afterwards. It gets `job` on
    standard input (`child.read_job`), its events (`child.emit`) are given to `on_event` as they
    come, and its standard output and error go to `log`, which is overwritten. When this function
    is left, also by Ctrl-C or an exception of `on_event`, nothing that it started is alive.

    Raises:
        Missing: the folder or the log cannot be written.
        BenchPrepError: the child sent something that is not an event.
    """
    launch_id = uuid.uuid4().hex
    read_fd, write_fd = os.pipe()
    with (
        os.fdopen(read_fd, "rb", buffering=0) as pipe,
        _empty_folder() as folder,
        _opened(log) as output,
        tempfile.TemporaryFile() as stdin,
    ):
        stdin.write(json.dumps(job).encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", module],
                cwd=folder,
                env=isolated_environment(env_extra)
                | {EVENTS_FD: str(write_fd), _LAUNCH_ID: launch_id},
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
                # Its own session: Ctrl-C reaches only us, and we end all of it together.
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
        try:
            for event in _events(pipe, process):
                on_event(event)
            return process.wait()
        finally:
            try:
                _terminate(process)
            finally:
                _kill_rest(process, launch_id)


def isolated_environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's environment with `extra`, without what can shadow installed modules."""
    wanted = os.environ | extra | {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    return {name: value for name, value in wanted.items() if name not in REMOVED_FROM_ENVIRONMENT}


@contextmanager
def _empty_folder() -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="bench-prep-", dir="/tmp"))
    except OSError as error:
        raise Missing(f"no folder can be made under /tmp: {error}", "free or mount /tmp") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _opened(log: Path) -> Iterator[Any]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("wb")
    except OSError as error:
        raise Missing(f"the log cannot be written: {error}", "choose a writable folder") from None
    with file:
        yield file


def _events(pipe: Any, process: subprocess.Popen[bytes]) -> Iterator[Event]:
    """Events until the child has ended or has closed its pipe.

    The end of the pipe alone is not enough: a program that the child started may hold it open.
    """
    os.set_blocking(pipe.fileno(), False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            selector.select(timeout=0 if ended else 0.2)
            chunk = pipe.read(1 << 16)  # None: nothing there now; b"": closed
            if chunk:
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(_parse, lines)
            elif chunk == b"" or ended:
                return  # an unfinished last line is from a child that was killed


def _parse(line: bytes) -> Event:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise BenchPrepError(f"the timing process sent something unreadable: {line[:80]!r}")
    return event


def _terminate(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _kill_rest(process: subprocess.Popen[bytes], launch_id: str) -> None:
    """Kill what the child started: known by its session, or by the identifier it inherited."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # After the command's closing bracket: state, parent, group, session.
            session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
            if (
                int(session) == process.pid
                or launch_id.encode() in (entry / "environ").read_bytes()
            ):
                os.kill(int(entry.name), signal.SIGKILL)

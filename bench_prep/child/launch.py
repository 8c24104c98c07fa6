"""Launch: a fresh interpreter in a new empty folder, from which no stray vllm can be imported."""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench_prep.child.channel import EVENTS_FD
from bench_prep.child.parent_end import Child
from bench_prep.child.sessions import LAUNCH_ID, in_session, is_resource_tracker, kill
from bench_prep.errors import Missing

#: Settings of the interpreter can put other modules in front of the installed ones, or slow what
#: is timed (`PYTHONTRACEMALLOC`); the child gets these alone. It leaves nothing beside a candidate.
PYTHON_SETTINGS = {
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Sets of texts have one order in all processes, those that are compared with each other too.
    "PYTHONHASHSEED": "0",
}
_GRACE_S = 5.0
#: A folder's name, with the process that made it.
_MADE_BY = re.compile(r"bench-prep-(\d+)-\w+")


@contextmanager
def launched(
    module: str,
    job: Mapping[str, Any],
    env_extra: dict[str, str],
    log: Path,
    *,
    who: str = "the timing process",
    named: bool = False,
    marks: Sequence[str] = (),
) -> Iterator[Child]:
    """`python -P -s -m module`, isolated, for the time of the context.

    The child works in a new empty folder under /tmp that is removed afterwards, and so is another
    one for what it makes as temporary (`TMPDIR`), such as vLLM's sockets. It gets `job` on standard
    input (`child.read_job`), and its standard output and error go to `log`, which is overwritten.
    When the context is left, also by Ctrl-C, nothing that it started is alive.
    `who`, `named` and `marks` are for errors (`Child`).

    Raises:
        Missing: the folder or the log cannot be written.
    """
    launch_id = uuid.uuid4().hex
    read_fd, write_fd = os.pipe()
    with (
        os.fdopen(read_fd, "rb", buffering=0) as pipe,
        temporary_folder() as folder,
        temporary_folder() as temporary,
        _opened(log) as output,
    ):
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", module],
                cwd=folder,
                env={"TORCHINDUCTOR_CACHE_DIR": _inductor_cache()}
                | isolated_environment(env_extra)
                | {"TMPDIR": str(temporary), EVENTS_FD: str(write_fd), LAUNCH_ID: launch_id},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
                # Its own session: Ctrl-C reaches only us, and we end all of it together.
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
        child = Child(process, pipe, log, who, named, marks)
        try:
            child.send(job)
            yield child
        finally:
            try:
                _terminate(process)
            finally:
                _kill_rest(process, launch_id)
                _close_quietly(process.stdin)


def _inductor_cache() -> str:
    """PyTorch's own, which is below TMPDIR: compiled kernels are no temporary files."""
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid_{os.getuid()}"
    return str(Path(tempfile.gettempdir(), f"torchinductor_{user}"))


def _close_quietly(stream: Any) -> None:
    with suppress(OSError):
        stream.close()


def isolated_environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's environment with `extra`, and no other setting of Python than our own."""
    wanted = {n: v for n, v in (os.environ | extra).items() if not n.startswith("PYTHON")}
    return wanted | PYTHON_SETTINGS


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new empty folder under /tmp, removed afterwards; if we are killed, by the next launch.

    Raises:
        Missing: it cannot be made.
    """
    _remove_left_folders()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"bench-prep-{os.getpid()}-", dir="/tmp"))
        held = _hold(folder)
    except OSError as error:
        raise Missing(f"no folder can be made under /tmp: {error}", "free or mount /tmp") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _hold(folder: Path) -> int:
    """Lock the folder for as long as the returned file descriptor is open.

    Raises:
        BlockingIOError: another process has it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_left_folders() -> None:
    """Remove our user's folders of killed processes.

    The process is looked for, because it takes the lock a moment after it has made the folder; the
    lock is tried, because a process of another container that shares /tmp cannot be seen.
    """
    for folder in Path("/tmp").glob("bench-prep-*"):
        maker = _MADE_BY.fullmatch(folder.name)
        if maker is None or Path("/proc", maker[1]).exists():
            continue
        with suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                held = _hold(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


@contextmanager
def _opened(log: Path) -> Iterator[Any]:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("wb")
    except OSError as error:
        raise Missing(f"the log cannot be written: {error}", "choose a writable folder") from None
    with file:
        yield file


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
    """Kill what the child started.

    Python's resource trackers come last: they end by themselves when nobody is left who uses them.
    """
    for pid in in_session(process.pid, launch_id):
        if not is_resource_tracker(pid):
            kill(pid)
    deadline = time.monotonic() + _GRACE_S
    while (left := in_session(process.pid, launch_id)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        kill(pid)

"""pip as a child: its output in a log, its progress in short lines, and no orphan left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Progress = Callable[[str], None]

_REPORT_EVERY_S = 5.0
#: pip's frame around a failed build, which hides the build's own last words.
_BOILERPLATE = re.compile(
    r"""\s*($ | [\u00d7\u2570\u2502] | note: | hint: | full\ command: | cwd: | Building\ wheel\ for
    | (error:\ )?subprocess-exited | ERROR:\ Failed\ (building|to\ build) | Failed\ to\ build
    | Preparing\ metadata | \[end\ of\ output\] | \[notice\] | Getting\ requirements
    | WARNING:\ (Location|Running\ pip) | error:\ metadata-generation-failed )""",
    re.VERBOSE,
)
#: Where pip finds packages, and whether it may install. Any other of its settings in the
#: environment (a target, a dry run) would change what our options mean.
_KEPT = re.compile(
    r"PIP_(((EXTRA_)?INDEX_URL|FIND_LINKS|NO_INDEX|TRUSTED_HOST|(CLIENT_)?CERT|PROXY|CONFIG_FILE)"
    r"|(NO_)?CACHE_DIR|(DEFAULT_)?TIMEOUT|RETRIES|KEYRING_PROVIDER|USE_FEATURE"
    r"|BREAK_SYSTEM_PACKAGES|REQUIRE_VIRTUALENV|ROOT_USER_ACTION)"
)
#: What a hook's environment has of the repository that it runs for: it is not what a build, or
#: what that fetches, works in.
_OF_A_REPOSITORY = re.compile(
    r"GIT_(DIR|WORK_TREE|COMMON_DIR|INDEX_\w+|(\w+_)?OBJECT_DIRECTOR\w+|NAMESPACE|PREFIX|CONFIG"
    r"|CONFIG_PARAMETERS|GRAFT_FILE|SHALLOW_FILE|QUARANTINE_PATH|REPLACE_\w+|\w*_WORK_TREE)"
)


def run_pip(
    arguments: list[str],
    *,
    cwd: Path,
    log: Path,
    label: str,
    progress: Progress,
    env: dict[str, str] | None = None,
) -> int:
    """Run `python -m pip` with its output in `log`; its return code.

    `progress` is told `label` at once, and every 5 s the seconds gone by and the log's last line.
    An interruption (Ctrl-C) ends pip and everything that it started. Of the environment's `PIP_*`
    those that say where packages are reach it.
    """
    given = os.environ if env is None else env
    kept = {
        name: value
        for name, value in given.items()
        if not _OF_A_REPOSITORY.fullmatch(name)
        and (not name.startswith("PIP_") or _KEPT.fullmatch(name))
    }
    progress(label)
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pip", "--no-input", *arguments],
            cwd=cwd,
            env=kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    return process.wait(_REPORT_EVERY_S)
                except subprocess.TimeoutExpired:
                    last = " ".join(last_lines(log, 1)).strip()[:70]
                    progress(f"{time.monotonic() - started:.0f} s  {last}".rstrip())
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


@contextmanager
def interruptions_wait() -> Iterator[list[int]]:
    """What would end this process waits until the context is left; the list has what came."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda n, _: came.append(n))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_lines(log: Path, count: int) -> list[str]:
    """The last `count` lines of pip's output that say something, without pip's own frame."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return []
    lines = [line.rstrip() for line in text.splitlines() if not _BOILERPLATE.match(line)]
    return lines[-count:]

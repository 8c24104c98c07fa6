"""The timing process is isolated, heard, and never outlives its run."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench_prep.child import channel as child
from bench_prep.child import launch
from bench_prep.child.launch import temporary_folder
from bench_prep.errors import BenchPrepError, Missing
from tests.child.said import run_isolated

PROBE = "tests.child.probe"


@pytest.fixture
def probe(tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]], str]]:
    """Runs code in the isolated process: return code, events, log."""

    def run(code: str, **extra: str) -> tuple[int, list[dict[str, Any]], str]:
        events: list[dict[str, Any]] = []
        log = tmp_path / "logs" / "probe.log"
        job = {"code": textwrap.dedent(code)}
        returned = run_isolated(PROBE, job, extra, events.append, log)
        return returned, events, log.read_text()

    return run


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid: int, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_works_in_a_new_empty_folder_under_tmp_that_is_removed(probe: Any) -> None:
    code = "import os; emit({'cwd': os.getcwd(), 'files': os.listdir()}); open('left', 'w')"
    folders = []
    for _ in range(2):
        returned, [event], _ = probe(code)
        assert returned == 0
        assert event["files"] == []
        assert Path(event["cwd"]).parent == Path("/tmp")
        assert not Path(event["cwd"]).exists()
        folders.append(event["cwd"])
    assert folders[0] != folders[1]


def test_temporary_files_are_removed_with_the_folder(
    probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a killed program too: vLLM leaves its sockets. What PyTorch compiled is kept."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    code = (
        "import os, signal, tempfile\n"
        "file = tempfile.mkstemp()[1]\n"
        "emit({'file': file, 'cwd': os.getcwd(), 'kept': os.environ['TORCHINDUCTOR_CACHE_DIR']})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    _, [event], _ = probe(code)
    file = Path(event["file"])
    assert file.parent.parent == Path("/tmp") and file.parent != Path(event["cwd"])
    assert not file.parent.exists()
    assert Path(event["kept"]).parent == Path(tempfile.gettempdir())


def test_a_shadow_vllm_is_not_seen(
    probe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    startup = tmp_path / "startup.py"
    startup.write_text("import os; os.environ['STARTED'] = '1'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(startup))
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    monkeypatch.setenv("PYTHONTRACEMALLOC", "25")
    monkeypatch.chdir(tmp_path)
    code = """
        import os, sys
        emit({"path": sys.path, "env": dict(os.environ), "safe": sys.flags.safe_path,
              "user": sys.flags.no_user_site})
    """
    _, [event], _ = probe(code, PYTHONPATH=str(tmp_path), ANSWER="42")
    assert str(tmp_path) not in event["path"]
    assert "" not in event["path"]
    assert event["safe"] and event["user"]
    settings = {n: v for n, v in event["env"].items() if n.startswith("PYTHON")}
    assert settings == launch.PYTHON_SETTINGS
    assert settings["PYTHONSAFEPATH"] == settings["PYTHONNOUSERSITE"] == "1"
    assert event["env"]["ANSWER"] == "42"


def test_sets_have_one_order_in_all_processes(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "emit({'set': list(set(map(str, range(100))))})"
    orders = []
    for seed in ("7", "random"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        orders.append(probe(code)[1])
    assert orders[0] == orders[1]


def test_events_arrive_while_the_child_runs_and_in_order(probe: Any, tmp_path: Path) -> None:
    code = """
        import pathlib, time
        for number in range(3):
            emit({"number": number, "text": "x" * 200_000})
            while not pathlib.Path(SEEN, str(number)).exists():
                time.sleep(0.01)
    """
    arrived: list[int] = []
    job = {"code": textwrap.dedent(code).replace("SEEN", repr(str(tmp_path)))}

    def on_event(event: dict[str, Any]) -> None:
        assert len(event["text"]) == 200_000
        arrived.append(event["number"])
        (tmp_path / str(event["number"])).touch()  # the child waits for it

    assert run_isolated(PROBE, job, {}, on_event, tmp_path / "log") == 0
    assert arrived == [0, 1, 2]


def test_output_goes_to_the_log_and_not_to_the_events(
    probe: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; print('said'); print('warned', file=sys.stderr); emit({'ok': True})"
    _, events, log = probe(code)
    assert events == [{"ok": True}]
    assert "said" in log and "warned" in log
    assert capfd.readouterr() == ("", "")


def test_a_child_that_dies_gives_its_return_code_and_its_log(probe: Any) -> None:
    returned, events, log = probe("emit({'begun': 1}); raise SystemExit('no device')")
    assert (returned, events) == (1, [{"begun": 1}])
    assert "no device" in log
    returned, events, _ = probe(
        "import os, signal; os.write(int(os.environ['BENCH_PREP_EVENTS_FD']), b'{\"torn');"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (returned, events) == (-signal.SIGKILL, [])


def test_what_the_child_started_is_killed_with_it(probe: Any) -> None:
    code = """
        import subprocess, sys
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        own_session = subprocess.Popen(sleep, start_new_session=True, close_fds=False)
        emit({"pids": [subprocess.Popen(sleep).pid, own_session.pid]})
    """
    returned, [event], _ = probe(code)
    assert returned == 0
    assert all(gone(pid) for pid in event["pids"])


def test_shared_memory_that_a_killed_program_leaves_is_removed(probe: Any) -> None:
    program = (
        "import time; from multiprocessing.shared_memory import SharedMemory; "
        "print(SharedMemory(create=True, size=32).name, flush=True); time.sleep(100)"
    )
    _, (event,), _ = probe(
        "import subprocess, sys\n"
        f"started = subprocess.Popen([sys.executable, '-c', {program!r}],"
        " stdout=subprocess.PIPE, text=True)\n"
        "emit({'name': started.stdout.readline().strip()})"
    )
    assert event["name"]
    assert not Path("/dev/shm", event["name"]).exists()


def test_an_error_while_handling_an_event_ends_the_child(tmp_path: Path) -> None:
    pids = []

    def on_event(event: dict[str, Any]) -> None:
        pids.append(event["pid"])
        raise KeyboardInterrupt

    code = "import os, time; emit({'pid': os.getpid()}); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run_isolated(PROBE, {"code": code}, {}, on_event, tmp_path / "log")
    assert not alive(pids[0])


def test_a_child_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.3)
    pids = []

    def on_event(event: dict[str, Any]) -> None:
        pids.append(event["pid"])
        raise KeyboardInterrupt

    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
emit({'pid': os.getpid()})
time.sleep(60)
"""
    with pytest.raises(KeyboardInterrupt):
        run_isolated(PROBE, {"code": code}, {}, on_event, tmp_path / "log")
    assert not alive(pids[0])


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_the_child_and_what_it_started_die_with_its_parent(
    tmp_path: Path, sent: signal.Signals, deaf: bool
) -> None:
    """Also one that ignores SIGTERM, as vLLM's server does at its start."""
    pid_file = tmp_path / "pid"
    program = (
        "import time; from multiprocessing import resource_tracker, shared_memory\n"
        "made = shared_memory.SharedMemory(create=True, size=32)\n"
        # Until it ignores SIGTERM, as it begins, the tracker is ended by it.
        "file = f'/proc/{resource_tracker._resource_tracker._pid}/status'\n"
        "ignored = lambda: int(open(file).read().split('SigIgn:')[1].split()[0], 16)\n"
        f"while not ignored() & 1 << {signal.SIGTERM - 1}: time.sleep(0.01)\n"
        "print(made.name, flush=True); time.sleep(60)"
    )
    ignoring = (
        "import signal; from bench_prep.child.channel import end_with_parent\n"
        "end_with_parent(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    )
    code = (ignoring if deaf else "") + (
        "import os, subprocess, sys, time\n"
        f"other = subprocess.Popen([sys.executable, '-c', {program!r}], stdout=subprocess.PIPE)\n"
        f"open({str(tmp_path / 'shared')!r}, 'w').write(other.stdout.readline().decode())\n"
        f"open({str(tmp_path / 'other')!r}, 'w').write(str(other.pid))\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal, sys; from pathlib import Path\n"
            # A shell's background job, such as a CI runner's, ignores Ctrl-C from the start.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from tests.child.said import run_isolated\n"
            f"run_isolated({PROBE!r}, {{'code': sys.argv[1]}}, {{}}, print, Path(sys.argv[2]))",
            code,
            str(tmp_path / "log"),
        ],
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 200
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    pid = int(pid_file.read_text())
    folder = Path(f"/proc/{pid}/cwd").resolve()
    os.kill(parent.pid, sent)
    assert parent.wait(timeout=100) != 0
    assert gone(pid)
    assert gone(int((tmp_path / "other").read_text()))
    shared = Path("/dev/shm", (tmp_path / "shared").read_text().strip())
    deadline = time.monotonic() + 100
    while shared.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert shared.name.startswith("psm_") and not shared.exists()
    if sent == signal.SIGKILL:
        assert folder.is_dir(), "nobody was left to do it"
        with temporary_folder() as another:
            assert another.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize("maker", ["a living process", "another user", "a process out of sight"])
def test_a_folder_that_may_be_in_use_stays(maker: str) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    pid = os.getpid() if maker == "a living process" else ended.pid
    folder = Path(tempfile.mkdtemp(prefix=f"bench-prep-{pid}-", dir="/tmp"))
    held = os.open(folder, os.O_RDONLY)
    try:
        if maker == "another user":
            if os.geteuid() != 0:
                pytest.skip("only root can give a folder away")
            os.chown(folder, 12345, 12345)
        if maker == "a process out of sight":
            fcntl.flock(held, fcntl.LOCK_EX)
        with temporary_folder():
            assert folder.is_dir()
    finally:
        os.close(held)
        folder.rmdir()


def test_unreadable_events_are_named(tmp_path: Path) -> None:
    code = "import os; os.write(int(os.environ['BENCH_PREP_EVENTS_FD']), b'hello\\n')"
    with pytest.raises(BenchPrepError, match=r"unreadable.*hello"):
        run_isolated(PROBE, {"code": code}, {}, print, tmp_path / "log")


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Missing, match="log cannot be written"):
        run_isolated(PROBE, {}, {}, print, tmp_path / "file" / "log")


def test_the_childs_end_refuses_to_be_used_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(child.EVENTS_FD, raising=False)
    with pytest.raises(RuntimeError, match="bench-prep run"):
        child.emit(child.Done())
    with pytest.raises(RuntimeError, match="bench-prep run"):
        child.read_job()

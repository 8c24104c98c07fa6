"""The wheel: built by the worktree's own build, kept while nothing changes, never half-made."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from bench_prep.errors import Missing, NotTheWorktree, UsageError
from bench_prep.provenance import build, cachedir, pip_process
from bench_prep.provenance.build import build_wheel
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.worktree import open_worktree

pytest.importorskip("setuptools")


def wheel_names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as wheel:
        return wheel.namelist()


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_builds_once_and_again_only_after_a_change(
    small_vllm: Path, parts: Path, said: Any
) -> None:
    tree_before = contents(small_vllm)
    worktree = open_worktree(small_vllm)
    first = build_wheel(worktree, parts, "cpu", said)
    assert not first.cached
    assert first.tree_hash == worktree.tree_hash()
    assert first.path.name.startswith("vllm-0.32.0-")
    assert "building for cpu" in first.log.read_text()
    assert "vllm/data.json" in wheel_names(first.path)
    assert contents(small_vllm) == tree_before, "the user's tree is not littered"
    assert said.lines == [f"building vLLM 0.32.0 for cpu with the compiled parts of {parts.name}"]

    second = build_wheel(worktree, parts, "cpu", said)
    assert second.cached
    assert (second.path, second.sha256) == (first.path, first.sha256)
    assert "unchanged" in said.lines[-1]

    (small_vllm / "vllm" / "v1" / "utils.py").write_text("TWO = 2\n")
    third = build_wheel(worktree, parts, "cpu", said)
    assert not third.cached
    assert third.path != first.path and first.path.exists()


def test_what_else_decides_the_wheel(
    small_vllm: Path, parts: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree = open_worktree(small_vllm)
    build_wheel(worktree, parts, "cpu", said)
    assert not build_wheel(worktree, parts, "empty", said).cached
    with zipfile.ZipFile(parts, "a") as wheel:
        wheel.writestr("vllm/other.so", b"")
    assert not build_wheel(worktree, parts, "cpu", said).cached
    monkeypatch.setenv("CMAKE_ARGS", "-DX=1")
    assert not build_wheel(worktree, parts, "cpu", said).cached
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert build_wheel(worktree, parts, "cpu", said).cached


def test_a_damaged_wheel_is_built_again(small_vllm: Path, parts: Path, said: Any) -> None:
    worktree = open_worktree(small_vllm)
    first = build_wheel(worktree, parts, "cpu", said)
    first.path.write_bytes(b"short")
    again = build_wheel(worktree, parts, "cpu", said)
    assert not again.cached and zipfile.is_zipfile(again.path)


def test_only_the_newest_wheels_are_kept(
    small_vllm: Path, parts: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_KEPT_WHEELS", 2)
    for number in range(3):
        (small_vllm / "vllm" / "v1" / "utils.py").write_text(f"N = {number}\n")
        last = build_wheel(open_worktree(small_vllm), parts, "cpu", said)
    assert last.path.exists()
    assert len(list((cache_dir() / "wheels").iterdir())) == 2


def test_the_narrow_cpu_parts_come_along_where_they_are_needed(
    small_vllm: Path, parts: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree = open_worktree(small_vllm)
    monkeypatch.setattr(build, "needs_narrow_cpu_parts", lambda: False)
    assert "vllm/_C_AVX2.abi3.so" not in wheel_names(build_wheel(worktree, parts, "cpu", said).path)
    monkeypatch.setattr(build, "needs_narrow_cpu_parts", lambda: True)
    assert "vllm/_C_AVX2.abi3.so" in wheel_names(build_wheel(worktree, parts, "cpu", said).path)


def test_a_full_compile_works_in_the_tree_without_its_stale_files(
    small_vllm: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_PRECOMPILED", "1")
    with (small_vllm / "setup.py").open("a") as setup:
        setup.write("assert 'VLLM_USE_PRECOMPILED' not in os.environ\n")
    worktree = open_worktree(small_vllm)
    stale = small_vllm / "build" / "lib" / "vllm" / "deleted.py"
    objects = small_vllm / "build" / "temp.linux" / "kernel.o"
    for file in (stale, objects):
        file.parent.mkdir(parents=True)
        file.touch()
    built = build_wheel(worktree, None, "cpu", said)
    assert "vllm/deleted.py" not in wheel_names(built.path)
    assert objects.exists(), "the next compilation is incremental"
    assert build_wheel(worktree, None, "cpu", said).cached, "what a build leaves is not a change"


def test_a_tree_that_changes_while_it_is_compiled(small_vllm: Path, said: Any) -> None:
    with (small_vllm / "setup.py").open("a") as setup:
        setup.write("open('vllm/v1/utils.py', 'a').write('# edited')\n")
    with pytest.raises(NotTheWorktree, match="changed while"):
        build_wheel(open_worktree(small_vllm), None, "cpu", said)
    assert not (cache_dir() / "wheels").exists()


def test_a_failed_build_shows_its_last_lines_and_leaves_the_cache_alone(
    small_vllm: Path, parts: Path, said: Any
) -> None:
    worktree = open_worktree(small_vllm)
    good = build_wheel(worktree, parts, "cpu", said)
    (small_vllm / "setup.py").write_text("print('so far so good')\nthis is no python\n")
    with pytest.raises(Missing) as error:
        build_wheel(worktree, parts, "cpu", said)
    assert error.value.exit_code == 6
    assert error.value.message.splitlines()[-1].strip() == "SyntaxError: invalid syntax"
    assert "this is no python" in error.value.message
    assert len(error.value.message.splitlines()) <= 17
    log = Path(error.value.remedy.split()[-1])
    assert "SyntaxError" in log.read_text()
    assert log.is_relative_to(cache_dir() / "logs")
    assert [p.name for p in (cache_dir() / "wheels").iterdir()] == [good.path.parent.name]
    assert not (cache_dir() / "building").exists()


def test_a_full_disk(
    small_vllm: Path, parts: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build, "stage", stage)
    with pytest.raises(Missing, match="disk is full") as error:
        build_wheel(open_worktree(small_vllm), parts, "cpu", said)
    assert "BENCH_PREP_CACHE" in error.value.remedy
    monkeypatch.undo()
    monkeypatch.setenv("BENCH_PREP_CACHE", str(parts.parent / "cache"))
    (small_vllm / "setup.py").write_text("raise OSError(28, 'No space left on device')\n")
    with pytest.raises(Missing, match="disk is full"):
        build_wheel(open_worktree(small_vllm), parts, "cpu", said)


def test_parts_that_are_no_wheel(small_vllm: Path, tmp_path: Path, said: Any) -> None:
    for path, why in ((tmp_path / "none.whl", "no such"), (small_vllm / "setup.py", "not a wheel")):
        with pytest.raises(UsageError, match=why):
            build_wheel(open_worktree(small_vllm), path, "cpu", said)


def test_an_error_of_cmake_is_shown_and_how_to_do_without(
    small_vllm: Path, parts: Path, said: Any
) -> None:
    error = "CMake Error at CMakeLists.txt:14 (find_package):\n  No compiler.\n" + "more\n" * 30
    (small_vllm / "setup.py").write_text(f"print({error!r}); raise SystemExit(1)")
    for precompiled, advice in ((None, True), (parts, False)):
        with pytest.raises(Missing, match=r"CMakeLists\.txt:14 .*: No compiler\.; its") as found:
            build_wheel(open_worktree(small_vllm), precompiled, "cpu", said)
        assert ("--precompiled WHEEL" in found.value.remedy) is advice


def test_a_disk_with_no_room_for_the_log(
    small_vllm: Path, parts: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(free=4096)
    monkeypatch.setattr(cachedir.shutil, "disk_usage", lambda _: full)
    monkeypatch.setattr(build, "run_pip", lambda *_, log, **__: log.touch() or 2)
    with pytest.raises(Missing, match="the disk is full"):
        build_wheel(open_worktree(small_vllm), parts, "cpu", said)


def test_ctrl_c_ends_the_build_and_leaves_nothing(
    small_vllm: Path, parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_process, "_REPORT_EVERY_S", 0.1)
    marker = small_vllm.parent / "pid"
    (small_vllm / "setup.py").write_text(
        f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )

    def interrupt(line: str) -> None:
        if marker.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_wheel(open_worktree(small_vllm), parts, "cpu", interrupt)
    assert not (cache_dir() / "building").exists()
    time.sleep(0.3)
    status = Path(f"/proc/{marker.read_text()}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


BUILDER = """
import sys
from pathlib import Path
from bench_prep.provenance.build import build_wheel
from bench_prep.provenance.worktree import open_worktree
def say(line):
    print(line)
    if line.startswith("waiting for process"):
        Path(sys.argv[3]).touch()
print(build_wheel(open_worktree(Path(sys.argv[1])), Path(sys.argv[2]), "cpu", say).path)
"""


def builder(root: Path, parts: Path, waits: Path | str = os.devnull) -> subprocess.Popen[str]:
    """A build of its own, which makes the file `waits` once it waits for another one."""
    line = [sys.executable, "-c", BUILDER, *map(str, (root, parts, waits))]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def test_a_killed_build_leaves_nothing_that_looks_finished(
    small_vllm: Path, parts: Path, said: Any
) -> None:
    """Not even the compiler that it started can harm the next build."""
    marker = small_vllm.parent / "pid"
    setup = (small_vllm / "setup.py").read_text()
    slow = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    (small_vllm / "setup.py").write_text(slow + setup)
    process = builder(small_vllm, parts)
    deadline = time.monotonic() + 600
    while not (marker.exists() and marker.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    orphan = Path(f"/proc/{marker.read_text()}")
    assert orphan.exists(), "the build's own child outlives it"
    assert not (cache_dir() / "wheels").exists()
    (small_vllm / "setup.py").write_text(setup)
    made = build_wheel(open_worktree(small_vllm), parts, "cpu", said)
    assert not made.cached and zipfile.is_zipfile(made.path)
    assert not (cache_dir() / "building").exists()
    deadline = time.monotonic() + 60
    while orphan.exists() and "Z (zombie)" not in (orphan / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_builds_at_once_do_not_harm_each_other(
    small_vllm: Path, parts: Path, tmp_path: Path
) -> None:
    setup = small_vllm / "setup.py"
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    setup.write_text(waits + setup.read_text())
    other = Path(shutil.copytree(small_vllm, tmp_path / "other"))
    (other / "vllm" / "v1" / "utils.py").write_text("TWO = 2\n")
    builders = [builder(root, parts, go) for root in (small_vllm, other)]
    said = [process.communicate(timeout=1200)[0].splitlines() for process in builders]
    assert [process.returncode for process in builders] == [0, 0]
    for lines, source in zip(said, (b"ONE = 1\n", b"TWO = 2\n"), strict=True):
        with zipfile.ZipFile(lines[-1]) as wheel:
            assert wheel.read("vllm/v1/utils.py") == source
    waited = [line for lines in said for line in lines if line.startswith("waiting for process")]
    assert waited


def test_two_builders_take_turns_and_say_so(small_vllm: Path, parts: Path, said: Any) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; from filelock import FileLock\n"
         "with FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()",
         str(cache_dir() / "build.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"

    def ends(line: str) -> None:
        said(line)
        if line.startswith("waiting"):
            holder.communicate()

    assert not build_wheel(open_worktree(small_vllm), parts, "cpu", ends).cached
    assert said.lines[0] == "waiting for another bench-prep"
    with FileLock(cache_dir() / "build.lock", timeout=0):
        pass

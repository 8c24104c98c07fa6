"""Bad input: the right exit code, one line and a remedy, and nothing written."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_prep.child.device import has_device
from bench_prep.results.table import RESERVE_BYTES

from .conftest import SHORT, Bench, interrupted
from .results import write_run

WORKTREE = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n'
    'build-backend = "setuptools.build_meta"\n[project]\nname = "vllm"\ndynamic = ["version"]\n',
    "setup.py": 'print("about to fail")\nraise SystemExit("no compiler for this vLLM")\n',
    "vllm/__init__.py": "",
    "vllm/v1/worker/block_table.py": "TABLE = []\n",
}


def make_worktree(root: Path, **more: str) -> Path:
    for name, text in (WORKTREE | more).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.usefixtures("same_files")
@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ("--position 32767", ["position 32767", "32768 tokens", "largest position: 32766"]),
        ("--position 0", ["--position", "greater than or equal to 1"]),
        ("--position 24576.5", ["--position"]),
        ("--max-model-len 100", ["position 24576", "100 tokens"]),
        ("--block-sizes 16,0", ["block sizes must be whole numbers from 1"]),
        ("--block-sizes 16,-16", ["block sizes must be whole numbers from 1"]),
        ("--block-sizes 16,a", ["'16,a' is not a comma-separated list"]),
        ("--block-sizes 16.5", ["'16.5' is not a comma-separated list"]),
        ("--block-sizes ,", ["','"]),
        ("--iters 0", ["--iters", "greater than or equal to 1"]),
        ("--rounds 0", ["--rounds", "greater than or equal to 1"]),
        ("--margin 0", ["--margin", "greater than 0"]),
        ("--margin nan", ["--margin"]),
        ("--budget 0", ["--budget", "greater than 0"]),
        ("--budget inf", ["--budget"]),
        ("--warmup -1", ["--warmup", "greater than or equal to 0"]),
        ("--max-num-reqs 4097", ["max-num-tokens must be at least max-num-reqs"]),
        ("--tpot-ms 0", ["--tpot-ms", "greater than 0"]),
        ("--device tpu", ["--device", "tpu"]),
        ("--candidate nothing", ["'nothing' is not of the form module:attribute"]),
        ("--candidate no.such:attach", ["cannot be loaded", "No module named 'no.such'"]),
        ("--candidate bench_prep.fastpath:no_such", ["has no no_such"]),
        ("--candidate no/such.py:attach", ["there is no file no/such.py"]),
        ("--preset no-such", ["no preset 'no-such'"]),
        ("--itres 5", ["--itres"]),
        ("--output /proc/results.csv", ["/proc/results.csv"]),
        ("--output one/two/results.csv", ["folder one/two does not exist"]),
        ("--output .", ["not an ordinary file"]),
        ("--worktree no-such", ["no-such is not a folder"]),
        ("--worktree .", ["is not a vLLM worktree"]),
        ("--worktree no:x:such", ["no:x:such is not a folder"]),
        ("--candidate no/such.py:x:x", ["no/such.py:x"]),
    ],
)
def test_wrong_usage_of_run(bench: Bench, arguments: str, texts: list[str]) -> None:
    bench("run", *arguments.split()).refused(2, *texts)


@pytest.mark.usefixtures("same_files")
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nonsense"], 2, "nonsense"),
        (["build"], 2, "build needs a worktree"),
        (["build", "--worktree", "."], 2, "is not a vLLM worktree"),
        (["verify-install", "--worktree", "."], 2, "is not a vLLM worktree"),
        (["verify-install", "--run", "1"], 2, "--run names a run of a result file"),
        (["cache", "--yes"], 2, "--yes is for --clear alone"),
        (["cache", "--edited", "vllm-0.32.0"], 2, "--edited is for --clear alone"),
        (["report"], 2, "files"),
        (["report", "no-such.csv"], 2, "no-such.csv"),
    ],
)
def test_wrong_usage_of_the_others(
    bench: Bench, arguments: list[str], code: int, text: str
) -> None:
    bench(*arguments).refused(code, text)


def test_a_traceback_is_shown_on_request_only(bench: Bench) -> None:
    assert "Traceback" in bench("--debug", "run", "--iters", "0").err
    assert "Traceback" not in bench("run", "--iters", "0").err


def test_a_preset_is_checked_like_the_options(bench: Bench, tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    for text, problem in (
        ("[run]\niters = 0\n", "--iters"),
        ("[run]\nno_such = 0\n", "--no-such"),
        ("[walk]\n", "no [run] table"),
        ("run\n", "not valid TOML"),
    ):
        preset.write_text(text)
        bench("run", "--preset", preset).refused(2, problem)
    preset.write_text("[run]\niters = 0\nposition = 40000\n")
    # A flag overrides the preset.
    bench("run", "--preset", preset, "--iters", "5").refused(2, "position 40000")


@pytest.mark.usefixtures("same_files")
class TestOutputFile:
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        # Made before `same_files` looks, because autouse fixtures come first.
        path = tmp_path / "results.csv"
        if "schema" in request.node.name:
            path.write_text("a,b\n1,2\n")
        else:
            write_run(path, "earlier")
            content = path.read_bytes()
            path.write_bytes(content[: len(content) - 40])
        return path

    def test_another_schema(self, bench: Bench) -> None:
        bench("run", "--output", "results.csv").refused(2, "results.csv has another schema")

    def test_a_torn_last_row(self, bench: Bench) -> None:
        bench("run", "--output", "results.csv").refused(2, "results.csv", "row")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    bench("run", "--output", folder / "results.csv").refused(2, "cannot be written")


def test_a_worktree_without_a_version(bench: Bench, tmp_path: Path) -> None:
    worktree = make_worktree(tmp_path / "vllm")
    for command in ("run", "build", "verify-install"):
        bench(command, "--worktree", worktree).refused(6, "no version can be found")
    assert not list(tmp_path.glob("*.csv"))


def wheels_in(environment: dict[str, str]) -> set[Path]:
    """The cache is shared with other tests: what counts is what a command adds."""
    return set(Path(environment["BENCH_PREP_CACHE"]).rglob("*.whl"))


def test_a_build_that_fails(bench: Bench, tmp_path: Path, environment: dict[str, str]) -> None:
    before = wheels_in(environment)
    worktree = make_worktree(tmp_path / "vllm", **{"PKG-INFO": "Name: vllm\nVersion: 0.32.0\n"})
    done = bench("run", "--worktree", worktree, "--device", "cpu")
    assert done.code == 6, done.err
    # The last lines of the build's output, and where all of it is.
    assert "no compiler for this vLLM" in done.err
    log = Path(done.err.splitlines()[-1].split()[-1])
    assert log.is_relative_to(environment["BENCH_PREP_CACHE"])
    assert "about to fail" in log.read_text()
    assert wheels_in(environment) == before
    assert [path.name for path in tmp_path.iterdir()] == ["vllm"]


def test_ctrl_c_while_building(tmp_path: Path, environment: dict[str, str]) -> None:
    before = wheels_in(environment)
    begun = tmp_path / "begun"
    setup = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(begun)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    make_worktree(
        tmp_path / "vllm", **{"PKG-INFO": "Name: vllm\nVersion: 0.32.0\n", "setup.py": setup}
    )
    arguments = ["run", "--worktree", "vllm", "--device", "cpu", "--output", "results.csv"]
    done, _ = interrupted(arguments, tmp_path, environment, begun)
    assert (done.code, done.err) == (130, "error: interrupted; nothing was written\n")
    assert {path.name for path in tmp_path.iterdir()} == {"vllm", "begun"}
    assert wheels_in(environment) == before


@pytest.mark.usefixtures("same_files")
@pytest.mark.skipif(has_device(), reason="there is a device")
def test_a_device_that_is_not_there(bench: Bench) -> None:
    bench("run", "--device", "cuda").refused(6, "--device cuda", "no NVIDIA, ROCm or DTK device")


@pytest.mark.usefixtures("same_files")
def test_no_vllm(bench: Bench, bare_python: Path) -> None:
    bench("run", python=bare_python).refused(6, "vLLM is not installed")


def test_an_unsupported_vllm(bench: Bench, bare_python: Path, tmp_path: Path) -> None:
    """A vLLM whose runner is not where the supported versions have it."""
    pytest.importorskip("torch")
    (site,) = (bare_python.parent.parent / "lib").glob("python*/site-packages")
    package, info = site / "vllm", site / "vllm-0.1.0.dist-info"
    source = b"__version__ = '0.1.0'\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(source).digest()).rstrip(b"=").decode()
    try:
        package.mkdir()
        (package / "__init__.py").write_bytes(source)
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.1.0\n")
        (info / "RECORD").write_text(f"vllm/__init__.py,sha256={digest},{len(source)}\n")
        done = bench("run", python=bare_python)
    finally:
        shutil.rmtree(package)
        shutil.rmtree(info)
    done.refused(6, "vLLM 0.1.0 is not supported", "vllm.platforms")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, a little larger than what a run asks for."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={RESERVE_BYTES + (2 << 20)}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_before(bench: Bench, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(4 << 20))
    bench("run", "--output", small_disk / "a.csv").refused(6, "no space left to write")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.vllm
def test_a_disk_that_fills_during_the_run(bench: Bench, small_disk: Path, tmp_path: Path) -> None:
    """What was there stays as it was, and what was measured is shown."""
    write_run(small_disk / "a.csv", "earlier")
    before = (small_disk / "a.csv").read_bytes()
    candidate = tmp_path / "filling.py"
    candidate.write_text(
        "def attach(runner):\n"
        "    try:\n"
        f"        with open({str(small_disk / 'filler')!r}, 'wb', buffering=0) as file:\n"
        "            while True: file.write(bytes(4096))\n"
        "    except OSError:\n"
        "        return runner._prepare_inputs\n"
    )
    done = bench(
        "run", *SHORT, "--output", small_disk / "a.csv", "--candidate", "filling.py:attach"
    )
    done.refused(6, "no space left to write")
    assert "baseline before" in done.out
    assert (small_disk / "a.csv").read_bytes() == before
    assert not list(small_disk.glob("*.gz"))


@pytest.mark.vllm
class TestOnTheRealVllm:
    @pytest.mark.usefixtures("same_files")
    def test_block_sizes_that_attention_does_not_accept(self, bench: Bench) -> None:
        done = bench("run", "--block-sizes", "16,24")
        done.refused(2, "--block-sizes", "does not accept 24")
        assert "accepted: " in done.err

    def test_another_worktree(self, bench: Bench, tmp_path: Path) -> None:
        worktree = make_worktree(tmp_path / "vllm", **{"PKG-INFO": "Name: vllm\nVersion: 0.32.0\n"})
        done = bench("run", "--no-build", "--worktree", worktree)
        assert done.code == 5, done.err
        assert "vllm/v1/worker/block_table.py" in done.out
        assert done.err.startswith("error: ")
        assert not list(tmp_path.glob("*.csv"))

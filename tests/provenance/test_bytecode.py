"""The source file is what runs, whatever bytecode lies beside it."""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import struct
import subprocess
import sys
from pathlib import Path

import pytest

UTILS = Path("vllm", "v1", "utils.py")
PLAIN = "import vllm.v1.utils; print(vllm.v1.utils.ONE)"
OURS = (
    "from bench_prep.provenance.bytecode import compile_from_source\n"
    "compile_from_source('vllm')\n" + PLAIN
)
FORGED = compile("ONE = 666\n", "utils.py", "exec")


def seen(code: str, site: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def forge(source: Path, flags: int) -> Path:
    """Bytecode that is not of its source, with a header that Python accepts."""
    stat = source.stat()
    if flags:
        header = struct.pack("<L", flags) + importlib.util.source_hash(source.read_bytes())
    else:
        header = struct.pack("<LLL", 0, int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size)
    place = Path(importlib.util.cache_from_source(source))
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(importlib.util.MAGIC_NUMBER + header + marshal.dumps(FORGED))
    return place


@pytest.mark.parametrize(
    "flags", [0, 0b01, 0b11], ids=["forged time and size", "unchecked hash", "forged hash"]
)
def test_bytecode_that_is_not_of_its_source(site: Path, flags: int) -> None:
    forged = forge(site / UTILS, flags)
    before = forged.read_bytes()
    assert seen(PLAIN, site) == "666", "Python itself is fooled"
    assert seen(OURS, site) == "1"
    assert forged.read_bytes() == before, "nothing is written beside the sources"


def test_an_edit_that_keeps_time_and_size(site: Path) -> None:
    source = site / UTILS
    py_compile.compile(str(source))
    stat = source.stat()
    source.write_text("ONE = 2\n")
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert seen(PLAIN, site) == "1"
    assert seen(OURS, site) == "2"


def test_a_package_that_is_imported_already(site: Path) -> None:
    code = "import vllm\n" + OURS
    with pytest.raises(subprocess.CalledProcessError) as error:
        seen(code, site)
    assert "was imported before" in error.value.stderr


def test_other_packages_are_left_alone(site: Path) -> None:
    code = OURS + "\nimport json.tool; print(type(json.tool.__loader__).__name__)"
    assert seen(code, site).split() == ["1", "SourceFileLoader"]


def test_a_file_that_was_put_right_after_it_was_compiled(site: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from bench_prep.decode.imported import check_imported\n"
        "from bench_prep.provenance.hashes import file_sha256\n"
        f"utils, package = Path({str(UTILS)!r}), Path('vllm')\n"
        "right = utils.read_text()\n"
        "hashes = {path.as_posix(): file_sha256(path) for path in package.rglob('*.py')}\n"
        "utils.write_text('ONE = 2\\n')\n" + OURS + "\n"
        "utils.write_text(right)\n"
        "check_imported({'package_dir': package, 'hashes': hashes})\n"
    )
    with pytest.raises(subprocess.CalledProcessError) as error:
        seen(code, site)
    assert error.value.stdout.strip() == "2"
    assert "vllm/v1/utils.py changed after it was verified" in error.value.stderr
    # Without the edit the same is accepted.
    assert seen(code.replace("ONE = 2", "ONE = 1"), site) == "1"

"""On the real vLLM wheel: every edit of a file is found, and every decoy is left alone."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import marshal
import os
import py_compile
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench_prep.errors import NotTheWorktree
from bench_prep.provenance import verify
from bench_prep.provenance.install import installed_vllm
from bench_prep.provenance.verify import Verification, fingerprint, require_ok
from bench_prep.provenance.worktree import Worktree, open_worktree
from tests.environments import copy_linked, make_bare_environment, rewrite, site_packages

from .conftest import Chain

pytestmark = pytest.mark.build
BLOCK_TABLE = "vllm/v1/worker/block_table.py"
NEW = "vllm/v1/worker/new.py"


@dataclass
class Case:
    """A copy of the worktree and of the installed package, for one test to change."""

    root: Path
    site: Path

    def edit(self, place: Path, change: Callable[[bytes], bytes]) -> None:
        rewrite(place, change(place.read_bytes()))

    @property
    def record(self) -> Path:
        return next(self.site.glob("vllm-*.dist-info")) / "RECORD"

    def record_as_installed(self, name: str = BLOCK_TABLE) -> None:
        """Makes RECORD say that the installed file is right."""
        content = (self.site / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines = [line for line in self.record.read_text().splitlines() if f"{name}," not in line]
        rewrite(self.record, "\n".join([*lines, f"{name},sha256={digest},{len(content)}", ""]))

    def worktree(self) -> Worktree:
        return open_worktree(self.root)

    def verify(self, alone: bool = False, whole: bool = False) -> Verification:
        installed = installed_vllm(self.site)
        assert installed is not None
        if alone:
            return fingerprint(installed, whole=whole)
        return verify.verify(self.worktree(), installed, whole=whole)


@pytest.fixture
def case(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setenv("BENCH_PREP_CACHE", str(chain.cache))
    found = Case(tmp_path / "tree", tmp_path / "site")
    copy_linked(chain.worktree.root, found.root)
    copy_linked(chain.site, found.site)
    yield found
    for folder in (found.root, found.site):
        shutil.rmtree(folder)


def edited(content: bytes) -> bytes:
    return content + b"\n# edited\n"


def forge_edit(case: Case) -> None:
    case.edit(case.site / BLOCK_TABLE, edited)
    case.record_as_installed()


def edit_both(case: Case) -> None:
    forge_edit(case)
    case.edit(case.root / BLOCK_TABLE, edited)


def crlf(case: Case) -> None:
    case.edit(case.root / BLOCK_TABLE, lambda text: text.replace(b"\n", b"\r\n"))


def byte_order_mark(case: Case) -> None:
    case.edit(case.root / BLOCK_TABLE, lambda text: b"\xef\xbb\xbf" + text)


def utf_16(case: Case) -> None:
    case.edit(case.root / BLOCK_TABLE, lambda text: text.decode().encode("utf-16"))


def bytecode_without_source(case: Case) -> None:
    source = case.site / BLOCK_TABLE
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
    source.unlink()


def forget(case: Case) -> None:
    """The installed file and its line in RECORD are gone."""
    (case.site / BLOCK_TABLE).unlink()
    kept = [line for line in case.record.read_text().splitlines() if BLOCK_TABLE not in line]
    rewrite(case.record, "\n".join([*kept, ""]))


Damage = Callable[[Case], None]
#: What is done, the problem of each file by its path, and the same without a worktree.
EDITS: dict[str, tuple[Damage, dict[str, str], dict[str, str]]] = {
    "key source edited after the build": (
        lambda case: case.edit(case.root / BLOCK_TABLE, edited),
        {BLOCK_TABLE: "differs"},
        {},
    ),
    "installed file edited": (
        lambda case: case.edit(case.site / BLOCK_TABLE, edited),
        {BLOCK_TABLE: "differs"},
        {BLOCK_TABLE: "RECORD differs"},
    ),
    "installed file and RECORD edited": (
        forge_edit,
        {BLOCK_TABLE: "differs"},
        {BLOCK_TABLE: "RECORD edited"},
    ),
    "worktree, installed file and RECORD edited": (
        edit_both,
        {BLOCK_TABLE: "RECORD edited"},
        {BLOCK_TABLE: "RECORD edited"},
    ),
    "installed file deleted, and its line in RECORD": (
        forget,
        {BLOCK_TABLE: "missing"},
        {BLOCK_TABLE: "missing"},
    ),
    "bytecode without its source": (
        bytecode_without_source,
        {BLOCK_TABLE: "missing", BLOCK_TABLE + "c": "extra"},
        {BLOCK_TABLE: "missing", BLOCK_TABLE + "c": "extra"},
    ),
    "file deleted from the worktree": (
        lambda case: (case.root / BLOCK_TABLE).unlink(),
        {BLOCK_TABLE: "extra"},
        {},
    ),
    "file added to the worktree": (
        lambda case: rewrite(case.root / NEW, "NEW = 1\n"),
        {NEW: "missing"},
        {},
    ),
    "file added to the installed package": (
        lambda case: rewrite(case.site / NEW, "NEW = 1\n"),
        {NEW: "extra"},
        {NEW: "extra"},
    ),
    "other line endings": (crlf, {BLOCK_TABLE: "differs in line endings only"}, {}),
    "a byte order mark": (byte_order_mark, {BLOCK_TABLE: "differs"}, {}),
    "another encoding": (utf_16, {BLOCK_TABLE: "differs"}, {}),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_named(case: Case, name: str) -> None:
    damage, with_worktree, alone = EDITS[name]
    damage(case)
    for found, expected in ((case.verify(), with_worktree), (case.verify(alone=True), alone)):
        assert {check.path: check.problem for check in found.wrong} == expected
        if not expected:
            require_ok(found)
            continue
        with pytest.raises(NotTheWorktree) as error:
            require_ok(found)
        assert error.value.exit_code == 5
        for path, problem in expected.items():
            assert f"{path} ({problem})" in error.value.message


def test_an_edited_compiled_part(case: Case) -> None:
    part = case.site / "vllm" / "spinloop.abi3.so"
    case.edit(part, lambda content: content[:-1] + bytes([content[-1] ^ 1]))
    require_ok(case.verify())  # the size alone is compared, for speed
    found = case.verify(whole=True)
    assert {check.path: check.problem for check in found.wrong} == {
        "vllm/spinloop.abi3.so": "RECORD differs"
    }
    case.edit(part, lambda content: content + b"more")
    assert [check.path for check in case.verify().wrong] == ["vllm/spinloop.abi3.so"]


def test_a_linked_worktree(case: Case, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(case.root)
    through = Case(link, case.site)
    require_ok(through.verify())
    assert through.worktree().tree_hash() == case.worktree().tree_hash()
    through.edit(link / BLOCK_TABLE, edited)
    assert [check.path for check in through.verify().wrong] == [BLOCK_TABLE]


#: Whoever imports it, leaves a trace.
DECOY = "open({trace!r}, 'a').write(__file__ + '\\n')\nraise ImportError('a decoy')\n"


def lay_decoys(folder: Path, decoy: str) -> None:
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(decoy)
    (folder / "vllm.py").write_text(decoy)


def poison(site: Path, decoy: str) -> int:
    """Replaces all bytecode of the runner's folder by the decoy's, with headers that fit."""
    count = 0
    for source in (site / "vllm" / "v1" / "worker").glob("*.py"):
        stat = source.stat()
        header = struct.pack("<LLL", 0, int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size)
        place = Path(importlib.util.cache_from_source(source))
        place.parent.mkdir(exist_ok=True)
        code = marshal.dumps(compile(decoy, str(source), "exec"))
        rewrite(place, importlib.util.MAGIC_NUMBER + header + code)
        count += 1
    return count


def test_the_right_code_is_timed_among_all_decoys(case: Case, chain: Chain, tmp_path: Path) -> None:
    """Working folder, PYTHONPATH, user site, a namespace package on the path, and bytecode."""
    trace = tmp_path / "trace"
    decoy = DECOY.format(trace=str(trace))
    python = make_bare_environment(tmp_path / "env")
    site = site_packages(tmp_path / "env")
    for folder in case.site.iterdir():
        copy_linked(folder, site / folder.name)
    work, on_path, user = tmp_path / "work", tmp_path / "on_path", tmp_path / "user"
    lay_decoys(work, decoy)
    lay_decoys(on_path, decoy)
    lay_decoys(user / "lib" / site.parent.name / "site-packages", decoy)
    namespace = tmp_path / "namespace"
    (namespace / "vllm" / "v1" / "worker").mkdir(parents=True)
    (namespace / "vllm" / "v1" / "worker" / "block_table.py").write_text(decoy)
    first = f"import sys; sys.path.insert(0, {str(namespace)!r})\n"
    (site / "a_namespace.pth").write_text(first)
    assert poison(site, decoy) > 5
    environment = os.environ | {
        "PYTHONPATH": str(on_path),
        "PYTHONUSERBASE": str(user),
        "BENCH_PREP_CACHE": str(chain.cache),
        "VLLM_CACHE_ROOT": str(tmp_path / "vllm_cache"),  # vLLM looks into the model itself
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    environment.pop("PYTHONSAFEPATH", None)

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *arguments], cwd=work, env=environment, capture_output=True, text=True
        )

    # An ordinary Python is fooled at once.
    assert call("-c", "import vllm").returncode != 0
    assert trace.exists()
    trace.unlink()

    # Our own start is from a script in its folder, so it does not see the working folder either.
    start = ("-P", "-m", "bench_prep")
    done = call(*start, "verify-install", "--worktree", case.root, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["package_dir"] == str(site / "vllm")
    run = ("--rounds", "1", "--iters", "20", "--warmup", "2", "--device", "cpu")
    done = call(*start, "run", "--worktree", case.root, "--no-build", *run)
    assert done.returncode in (0, 4), done.stdout + done.stderr
    assert f"imports {site / 'vllm'}" in done.stdout
    assert not trace.exists(), trace.read_text()

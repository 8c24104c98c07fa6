"""Installations that are not pip's: what is right is accepted, what is wrong has its name."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_prep.provenance import install
from bench_prep.provenance.install import InstalledVllm, PythonView, installed_vllm
from bench_prep.provenance.verify import fingerprint, verify
from bench_prep.provenance.worktree import open_worktree

pytest.importorskip("setuptools")
TABLE = "vllm/v1/worker/block_table.py"
Row = list[str]


def dist_info(site: Path) -> Path:
    (found,) = site.glob("vllm-*.dist-info")
    return found


def installed(site: Path) -> InstalledVllm:
    found = installed_vllm(site)
    assert found is not None
    return found


def rewrite(site: Path, change: Callable[[Row], Row]) -> None:
    """Change each row of RECORD that is of a file of vllm."""
    record = dist_info(site) / "RECORD"
    rows = list(csv.reader(record.read_text().splitlines()))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([change(row) if row[0].startswith("vllm/") else row for row in rows])
    record.write_text(text.getvalue())


def test_a_folder_that_is_on_the_path_twice(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lib64 is a link to lib (case 01)."""
    again = tmp_path / "lib64"
    again.symlink_to(site)
    for path in ([site, again], [again, site], [site, site]):
        view = PythonView(path, str(path[-1] / "vllm" / "__init__.py"))
        monkeypatch.setattr(install, "python_view", lambda view=view: view)
        found = installed_vllm()
        assert found is not None and found.others == ()
        assert fingerprint(found, whole=True).ok


@pytest.mark.parametrize("name", ["vLLM-0.32.0.dist-info", "vllm-0.32.0-py3.11.egg-info"])
def test_other_names_of_the_metadata(site: Path, name: str) -> None:
    folder = dist_info(site).rename(site / name)
    if name.endswith(".egg-info"):
        (folder / "METADATA").rename(folder / "PKG-INFO")
    assert installed(site).dist_info == site / name
    assert fingerprint(installed(site), whole=True).ok


def sha512(site: Path) -> Callable[[Row], Row]:
    def change(row: Row) -> Row:
        digest = hashlib.sha512((site / row[0]).read_bytes()).digest()
        return [row[0], "sha512=" + base64.urlsafe_b64encode(digest).decode().rstrip("="), row[2]]

    return change


def outside_and_back(site: Path) -> Callable[[Row], Row]:
    return lambda row: [f"../{site.name}/./{row[0]}", *row[1:]]


def no_size(site: Path) -> Callable[[Row], Row]:
    return lambda row: [row[0], row[1], ""]


def padded(site: Path) -> Callable[[Row], Row]:
    return lambda row: [row[0], f"SHA256{row[1].removeprefix('sha256')}=", row[2]]


@pytest.mark.parametrize("of", [sha512, outside_and_back, no_size, padded])
def test_a_record_of_another_installer(
    small_vllm: Path, site: Path, of: Callable[[Path], Callable[[Row], Row]]
) -> None:
    (dist_info(site) / "INSTALLER").unlink()
    (dist_info(site) / "direct_url.json").unlink()
    rewrite(site, of(site))
    found = fingerprint(installed(site), whole=True)
    assert found.ok, found.summary
    assert verify(open_worktree(small_vllm), installed(site), whole=True).ok
    (site / TABLE).write_text("TABLE = [1]\n")
    (site / "vllm" / "data.json").write_text("[]")
    found = fingerprint(installed(site), whole=True)
    wrong = {check.path: check.problem for check in found.wrong}
    assert wrong == {TABLE: "RECORD differs", "vllm/data.json": "RECORD differs"}


def test_the_same_entry_twice(site: Path) -> None:
    record = dist_info(site) / "RECORD"
    line = next(one for one in record.read_text().splitlines() if one.startswith(TABLE))
    record.write_text(record.read_text() + line + "\n")
    assert fingerprint(installed(site)).ok
    record.write_text(record.read_text() + f"{TABLE},,\n")
    assert "another one says otherwise" in fingerprint(installed(site)).summary


@pytest.mark.parametrize("algorithm", ["", "md5=AAAA"])
def test_a_record_without_hashes(small_vllm: Path, site: Path, algorithm: str) -> None:
    rewrite(site, lambda row: [row[0], algorithm, row[2]])
    found = fingerprint(installed(site))
    assert [*found.wrong] == [] and "of which RECORD has no safe hash" in found.summary
    compared = verify(open_worktree(small_vllm), installed(site))
    assert compared.ok and "no safe hash" in compared.not_compared[-1]
    (site / TABLE).write_text("TABLE = [1]\n")
    compared = verify(open_worktree(small_vllm), installed(site))
    assert {check.path: check.problem for check in compared.wrong} == {TABLE: "differs"}


def damage(how: str, record: Path) -> None:
    text = record.read_text()
    if how == "missing":
        record.unlink()
    elif how == "not UTF-8":
        record.write_bytes(b"\xff\xfe" + text.encode())
    elif how == "a folder":
        record.unlink()
        record.mkdir()
    else:
        record.write_text(
            {
                "an empty line": text + "\n",
                "empty": "",
                "absolute": "".join(f"/opt/site/{line}\n" for line in text.splitlines()),
                "other files": "other/x.py,,\n",
                "a cut hash": text.replace(f"{TABLE},sha256=", f"{TABLE},sha256=A"),
                "no number": text + "vllm/x.py,,many\n",
                "an open quote": text + '"vllm/x.py,,',
                "NUL": text + "\0\n",
                "no algorithm": text + "vllm/x.py,crc32=AAAA,1\n",
            }[how]
        )


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("missing", "is missing"),
        ("not UTF-8", "cannot be read"),
        ("a folder", "cannot be read"),
        ("an empty line", "cannot be read"),
        ("absolute", "its path is absolute"),
        ("empty", "names no file of vllm"),
        ("other files", "names no file of vllm"),
        ("a cut hash", "cannot be read"),
        ("no number", "cannot be read"),
        ("an open quote", "cannot be read"),
        ("NUL", "cannot be read"),
        ("no algorithm", "'crc32' is no hash"),
    ],
)
def test_a_record_of_no_use(small_vllm: Path, site: Path, how: str, named: str) -> None:
    """Case 12."""
    damage(how, dist_info(site) / "RECORD")
    worktree = open_worktree(small_vllm)
    for found in (fingerprint(installed(site)), verify(worktree, installed(site))):
        assert found.wrong == []
        (problem,) = found.problems
        assert problem.startswith("its RECORD ") and named in problem
    (site / TABLE).write_text("TABLE = [1]\n")
    found = verify(worktree, installed(site))
    assert {check.path: check.problem for check in found.wrong} == {TABLE: "differs"}


def test_files_of_the_installer_that_say_nothing(site: Path) -> None:
    (dist_info(site) / "WHEEL").write_text("Tag: nonsense\n")
    (dist_info(site) / "direct_url.json").write_text('{"archive_info": {"hash": "md5=00"}}')
    found = installed(site)
    assert found.wheel_sha256 is None and fingerprint(found).ok

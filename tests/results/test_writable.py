"""Before a run starts: can its result be stored?"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from bench_prep.errors import UsageError
from tests.results.frames import append, check_writable, load


def test_writable_leaves_nothing_behind(tmp_path) -> None:
    check_writable(tmp_path / "a.csv")
    assert list(tmp_path.iterdir()) == []


def test_writable_makes_one_folder(tmp_path) -> None:
    check_writable(tmp_path / "results" / "a.csv")
    assert (tmp_path / "results").is_dir()
    with pytest.raises(UsageError, match="does not exist") as caught:
        check_writable(tmp_path / "one" / "two" / "a.csv")
    assert caught.value.remedy == f"mkdir -p {tmp_path / 'one' / 'two'}"
    assert not (tmp_path / "one").exists()


def test_writable_empty_file_is_a_new_one(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    path.touch()
    check_writable(path)
    append(path, make_frame())
    assert len(load(path)) == 2


@pytest.mark.parametrize("path", [".", "/dev/null", "/dev/null/a.csv", "/proc/a.csv"])
def test_places_that_cannot_be_written(path) -> None:
    with pytest.raises(UsageError) as caught:
        check_writable(Path(path))
    assert caught.value.remedy


def refusal_for_nobody(path: Path) -> str:
    """What `check_writable` says to a user without root's right to write anywhere."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            check_writable(path)
            answer = ""
        except UsageError as error:
            answer = error.message
        except BaseException as error:
            answer = repr(error)
        os.write(theirs, answer.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_without_permission(make_frame) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "results"
        path = folder / "a.csv"
        Path(name).chmod(0o555)
        assert refusal_for_nobody(path) == f"{path} cannot be written: Permission denied"
        Path(name).chmod(0o777)
        assert refusal_for_nobody(path) == ""
        assert folder.is_dir()
        folder.chmod(0o555)
        assert refusal_for_nobody(path) == f"{path} cannot be written: Permission denied"
        folder.chmod(0o777)
        append(path, make_frame())
        path.chmod(0o444)
        assert refusal_for_nobody(path) == f"{path} is write-protected"

"""The command line in environments that people have."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bench_prep.errors import Missing
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.serve.processes import healthy, version_of

BLOCKS = "baseline_before_ms,candidate_ms,baseline_after_ms\n1.0,0.9,1.0\n"


def command(
    *arguments: str, shown: str = "", **environment: str | None
) -> subprocess.CompletedProcess[bytes]:
    env = {n: v for n, v in (os.environ | environment).items() if v is not None}
    line = [sys.executable, "-m", "bench_prep", *arguments]
    return subprocess.run(line, env=env, capture_output=True, input=shown.encode())


def test_a_report_of_a_pipe(tmp_path: Path) -> None:
    """Case 24."""
    (tmp_path / "a.csv").write_text(BLOCKS)
    line = f'{sys.executable} -m bench_prep report <(cat a.csv) <(cat "{tmp_path}/a.csv")'
    for done in (
        command("report", "/dev/stdin", shown=BLOCKS),
        subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True),
    ):
        assert done.returncode == 0, done.stderr
        assert b"0.9" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_letters_that_the_terminal_does_not_have_are_escaped(tmp_path: Path, encoding: str) -> None:
    """Case 35."""
    folder = tmp_path / "köln µs ł"
    folder.mkdir()
    files = [folder / "ü.csv", folder / "b\udcff.csv"]
    for file in files:
        file.write_text(BLOCKS)
    done = command("report", *map(str, files), PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    missing = command("report", str(folder / "ß.csv"), PYTHONIOENCODING=encoding)
    assert missing.returncode == 2 and b"no such file" in missing.stderr


def test_no_home_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 34: a user without a name, as containers have them."""
    for name in ("HOME", "XDG_CACHE_HOME", "BENCH_PREP_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(Missing, match="cannot be made") as error:
        cache_dir()
    assert error.value.remedy.startswith("set BENCH_PREP_CACHE")
    monkeypatch.setenv("BENCH_PREP_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(Missing):
        cache_dir()


def test_a_worktree_in_the_home_of_nobody() -> None:
    done = command("run", "--no-build", "--worktree", "~nobody-of-this-name/vllm")
    assert done.returncode == 2 and b"is not a folder" in done.stderr, done.stderr


class _Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "0.32.0"}')

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_for_this_machine(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Case 30."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{host}:{server.server_port}"
        assert healthy(url) and version_of(url) == "0.32.0"
        server.shutdown()

"""A service is asked directly, and what it answers wrong is said."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bench_prep.serve.processes import ServiceFailed, asked, healthy, version_of

ANSWERS = {
    "/health": (200, ""),
    "/version": (200, '{"version": "0.32.0"}'),
    "/list": (200, "[]"),
    "/text": (200, "hello"),
    "/broken": (503, "is loading"),
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, text = ANSWERS[self.path]
        self._answer(status, text)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(200, json.dumps({"asked": body}))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *given: object) -> None:
        """Nothing."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A service on loopback, where the environment names proxies that are not there."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_answers(url: str) -> None:
    assert healthy(url)
    assert version_of(url) == "0.32.0"
    assert asked(url, "/tokenize", {"prompt": "é"}) == {"asked": {"prompt": "é"}}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/broken", "/broken answered 503: is loading"),
        ("/list", "answered no JSON object"),
        ("/text", "did not answer: "),
    ],
)
def test_wrong_answers(url: str, path: str, said: str) -> None:
    with pytest.raises(ServiceFailed, match=said):
        asked(url, path)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[::1"])
def test_nobody_there(url: str) -> None:
    assert not healthy(url)
    assert version_of(url) is None

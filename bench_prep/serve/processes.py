"""One `vllm serve` process for the time of a context, and the client that asks it."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench_prep.child.launch import launched
from bench_prep.child.log_end import end_of
from bench_prep.child.parent_end import Child
from bench_prep.errors import Missing, UsageError
from bench_prep.serve.events import Answered, ClientReady
from bench_prep.serve.names import CLIENT, SERVER

#: What a server does at its start, by what vLLM or Triton writes when it does it.
_STAGES = {
    "Initializing a V1 LLM engine": "starts its engine",
    "Starting to load model": "loads the model",
    "Dynamo bytecode transform": "compiles the model",
    "Warming up model for the compilation": "compiles the model",
    "Autotuning kernel": "tunes Triton's kernels",
    "Capturing CUDA graphs": "captures graphs",
    "init engine": "starts listening",
}
#: A line for a stage that takes longer.
_SECONDS_BETWEEN_LINES = 30.0
#: Lines of a server's log that say what was wrong.
_MARKS = ("Error", "ERROR")
_HTTP_S = 30.0
#: As for the timed requests: no proxy of the environment, and the system's certificates.
_DIRECT: dict[str, Any] = {
    "trust_env": False,
    "follow_redirects": True,
    "verify": ssl.create_default_context(),
}


class ServiceFailed(Missing):
    """The server did not start, ended, hangs, or answered something else than a completion."""


@dataclass(frozen=True)
class Patience:
    """Seconds: until a server is ready, and until it must have sent something more."""

    start_s: float = 1200.0
    stall_s: float = 120.0


@dataclass
class Service:
    """A service that can be asked: its address, and its process and log where they are ours."""

    url: str
    log: Path | None = None
    child: Child | None = None

    def ended(self) -> str:
        """How its process ended, with the end of its log; "" while it runs or is not ours."""
        return "" if self.child is None or self.child.poll() is None else self.child.ending()


def free_port(wanted: int | None = None) -> int:
    """A port of loopback that nobody listens on; `wanted` if given.

    Raises:
        UsageError: `wanted` is taken.
    """
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", wanted or 0))
        except OSError as error:
            raise UsageError(
                f"port {wanted} cannot be used: {error.strerror}",
                "choose another --port, or leave it away for a free one",
            ) from None
        return int(free.getsockname()[1])


@contextmanager
def served(
    arguments: Sequence[str],
    environment: dict[str, str],
    log: Path,
    patience: Patience,
    *,
    port: int | None = None,
    module: str = SERVER,
    update: Callable[[str], None] = lambda text: None,
) -> Iterator[Service]:
    """`vllm serve ...` on a free port of loopback, ready to be asked; ended with the context.

    Raises:
        UsageError: the port is taken.
        ServiceFailed: it ended or was not ready in time; the message has the end of its log.
    """
    chosen = free_port(port)
    address = ["--host", "127.0.0.1", "--port", str(chosen)]
    job = {"arguments": ["serve", *arguments, *address]}
    with launched(module, job, environment, log, who="the server", marks=_MARKS) as child:
        service = Service(f"http://127.0.0.1:{chosen}", log, child)
        began = time.monotonic()
        ready, said, told = False, "", 0.0
        while not ready:
            time.sleep(0.2)
            ready = healthy(service.url)
            # Asked last: who answers on this port may be somebody else.
            if ended := service.ended():
                raise ServiceFailed(f"at its start {ended}", "correct what the log says")
            waited = time.monotonic() - began
            if not ready and waited > patience.start_s:
                raise ServiceFailed(
                    f"the server was not ready after {patience.start_s:g} s; "
                    + end_of(log, _MARKS),
                    "give it more with --start-timeout",
                )
            stage = stage_in(log)
            if stage != said or waited - told > _SECONDS_BETWEEN_LINES:
                said, told = stage, waited
                update(f"the server {stage}, {waited:.0f} s")
        yield service


def stage_in(log: Path) -> str:
    """What the server with this log does, as far as it has said."""
    text = log.read_text("utf-8", "replace")
    last = max(_STAGES, key=text.rfind)
    return _STAGES[last] if last in text else "starts"


def healthy(url: str) -> bool:
    """Whether the server says that it is ready."""
    try:
        return httpx.get(f"{url}/health", timeout=5, **_DIRECT).status_code == 200
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def asked(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON answer of the server; a POST where there is a body.

    Raises:
        ServiceFailed: no answer, or an error.
    """
    method = "GET" if body is None else "POST"
    try:
        answer = httpx.request(method, url + path, json=body, timeout=_HTTP_S, **_DIRECT)
        found = answer.json() if answer.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ServiceFailed(
            f"{url}{path} did not answer: {error}", "is it a vLLM server?"
        ) from None
    if not answer.is_success:
        raise ServiceFailed(f"{url}{path} answered {answer.status_code}: {answer.text[:300]}")
    if not isinstance(found, dict):
        raise ServiceFailed(f"{url}{path} answered no JSON object", "is it a vLLM server?")
    return found


def version_of(url: str) -> str | None:
    """The service's vLLM, as it says itself; None where it does not."""
    try:
        return str(asked(url, "/version")["version"])
    except (ServiceFailed, KeyError):
        return None


class Client:
    """The client's process: one request at a time, the same process for all servers."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def ready(self) -> dict[str, Any]:
        """Wait until vLLM's client is imported; the environment columns that it knows."""
        return self._child.answer(ClientReady).environment

    def ask(self, service: Service, command: dict[str, Any], patience: Patience) -> Answered:
        """The whole answer to one request: token ids, times, log-probabilities.

        Raises:
            ServiceFailed: there is none, or not all of it.
        """
        answer = self._child.ask(Answered, url=service.url, **command)
        if problem := problem_of(answer, command["max_tokens"], patience):
            time.sleep(0.3)  # a process that dies closes its connections first
            raise ServiceFailed(service.ended() or problem, "see the server's log")
        return answer


@contextmanager
def client(patience: Patience, environment: dict[str, str], log: Path) -> Iterator[Client]:
    """The client's process for the time of a context."""
    job = {"stall_s": patience.stall_s}
    with launched(CLIENT, job, environment, log, who="the client's process") as child:
        yield Client(child)


def problem_of(answer: Answered, max_tokens: int, patience: Patience) -> str:
    """What is wrong with an answer, in words; "" for a whole one."""
    if answer.status is None:
        if "Timeout" in answer.error:
            return f"the server did not answer for {patience.stall_s:g} s (--stall-timeout)"
        return f"the server cannot be reached: {answer.error}"
    if answer.status != 200:
        return f"the server answered {answer.status}: {answer.body[:300]}"
    got = len(answer.tokens)
    if answer.stream_error:
        return f"the server ended the stream with an error: {answer.stream_error[:300]}"
    if "Timeout" in answer.error:
        return (
            f"the server hangs: no token for {patience.stall_s:g} s after {got} of {max_tokens} "
            "tokens (--stall-timeout)"
        )
    if answer.error or not answer.whole or answer.finish is None:
        why = f" ({answer.error})" if answer.error else ""
        return f"the stream was closed early, after {got} of {max_tokens} tokens{why}"
    if not got:
        return "the server sent no token ids: it is no vLLM that knows return_token_ids"
    if answer.completion_tokens not in (None, got):
        return f"the server counts {answer.completion_tokens} tokens, and sent {got}"
    return ""

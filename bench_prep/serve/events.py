"""What the client's process sends: that it is ready, then what came of each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_prep.child.channel import Event


@dataclass(frozen=True)
class ClientReady(Event):
    """vLLM's client is imported; the environment columns that it knows."""

    environment: dict[str, Any]


@dataclass(frozen=True)
class Answered(Event):
    """One request's stream, as it came; times in seconds from the sending of the request.

    Attributes:
        ttft_s, latency_s: to the first token, and to the last.
        itl_s: from one chunk to the next.
        error: of the client; `stream_error`: that the server sent in the stream.
        status: of HTTP; None where there was no answer. `body`: of an error.
        logprobs: of the chosen tokens; None where it is no number.
        chunk_tokens: the tokens of each chunk.
        whole: the stream ended as it should.
        prompt_tokens, completion_tokens: as the server counts them.
    """

    ttft_s: float
    latency_s: float
    itl_s: list[float]
    text: str
    error: str
    status: int | None
    body: str
    tokens: list[int]
    logprobs: list[float | None]
    chunk_tokens: list[int]
    finish: str | None
    whole: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    stream_error: str

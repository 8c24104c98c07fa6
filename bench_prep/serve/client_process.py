"""The process of the client: vLLM's own benchmark client, one request at a time.

`vllm bench serve`'s request function sends the request, reads the stream and takes the times
(`vllm/benchmarks/lib/endpoint_request_func.py`). It keeps neither token ids nor log-probabilities,
takes a stream that ends early for a whole one, and drops the text of an error. So it is given a
session that keeps what the server sent, from which these are read afterwards, outside of all times.

Started by `provenance.launch`. Its events: `ClientReady`, then one `Answered` per command.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from bench_prep.child.channel import commands, emit
from bench_prep.child.job import do_job
from bench_prep.errors import Missing
from bench_prep.serve.events import Answered, ClientReady


def _work(job: dict[str, Any]) -> None:
    try:
        import aiohttp
        from vllm.benchmarks.lib import endpoint_request_func as client
    except ImportError as error:
        raise Missing(
            f"vLLM's benchmark client cannot be imported: {error}",
            "run scripts/run_bench.sh, or install vLLM beside bench-prep",
        ) from None

    async def ask(command: dict[str, Any]) -> Answered:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=job["stall_s"])
        async with aiohttp.ClientSession(timeout=timeout) as session:
            kept = KeptSession(session)
            given = client.RequestFuncInput(
                prompt=command["prompt"],
                api_url=f"{command['url']}/v1/completions",
                prompt_len=len(command["prompt"]),
                output_len=command["max_tokens"],
                model=command["model"],
                logprobs=command["logprobs"],
                ignore_eos=command["ignore_eos"],
                extra_body={"temperature": 0.0, "seed": 0, "return_token_ids": True},
            )
            gc.disable()  # a collection in the middle of a stream would be a slow token
            output = await client.async_request_openai_completions(given, session=kept)
            gc.enable()
        return Answered(
            ttft_s=output.ttft,
            latency_s=output.latency,
            itl_s=output.itl,
            text=output.generated_text,
            error=last_line(output.error),
            status=kept.status,
            body=kept.body,
            **said_in(b"".join(kept.chunks)),
        )

    gc.freeze()  # what is imported is never looked at again
    _first_in_line()
    emit(ClientReady(_environment()))
    with asyncio.Runner() as runner:
        for command in commands():
            emit(runner.run(ask(command)))


def _first_in_line() -> None:
    """Where it is allowed, this thread runs as soon as there is a token to take the time of.

    It sleeps in between. Otherwise it waits for its turn on a busy core, of 2 at times longer than
    a whole answer takes: vLLM's processes never sleep while they wait for each other.
    """
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _environment() -> dict[str, Any]:
    """The environment columns of this machine, as far as a process knows that loads no model."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    from bench_prep.decode.bring_up import fastpath_sha256
    from bench_prep.measure.machine import cpu_model, driver_version, triton_version

    cpu = current_platform.is_cpu()
    return {
        "vllm_version": vllm.__version__,
        "torch_version": str(torch.__version__),
        "triton_version": triton_version(),
        "python_version": sys.version.split()[0],
        "platform": str(current_platform.device_name),
        "device_name": cpu_model() if cpu else current_platform.get_device_name(),
        "driver": None if cpu else driver_version(),
        "cpu_model": cpu_model(),
        "fastpath_sha256": fastpath_sha256(),
    }


class KeptSession:
    """An aiohttp session of which one response is kept: status, body of an error, chunks."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.status: int | None = None
        self.body = ""
        self.chunks: list[bytes] = []

    def post(self, **arguments: Any) -> KeptSession:
        self._posted = self._session.post(**arguments)
        return self

    async def __aenter__(self) -> KeptSession:
        self._response = await self._posted.__aenter__()
        self.status, self.reason = self._response.status, self._response.reason
        if self.status != 200:
            self.body = (await self._response.text())[:500]
        return self

    async def __aexit__(self, *given: Any) -> Any:
        return await self._posted.__aexit__(*given)

    @property
    def content(self) -> KeptSession:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.content.iter_any():
            self.chunks.append(chunk)
            yield chunk


def last_line(text: str) -> str:
    """Of a traceback: the error itself."""
    return text.strip().rpartition("\n")[2]


def said_in(stream: bytes) -> dict[str, Any]:
    """Token ids, log-probabilities and the end, from the server-sent events of one completion."""
    found: dict[str, Any] = {
        **{"tokens": [], "logprobs": [], "chunk_tokens": [], "finish": None, "whole": False},
        **{"prompt_tokens": None, "completion_tokens": None, "stream_error": ""},
    }
    for line in stream.decode("utf-8", "replace").splitlines():
        if not line.startswith("data:"):
            continue
        text = line.removeprefix("data:").strip()
        if text == "[DONE]":
            found["whole"] = True
            continue
        try:
            data = json.loads(text)
        except ValueError:
            continue  # cut in the middle: there is no end either
        if data.get("error"):
            error = data["error"]
            found["stream_error"] = str(
                error.get("message", error) if isinstance(error, dict) else error
            )
        if usage := data.get("usage"):
            found["prompt_tokens"] = usage.get("prompt_tokens")
            found["completion_tokens"] = usage.get("completion_tokens")
        for choice in data.get("choices") or ():
            tokens = choice.get("token_ids") or []
            found["tokens"] += tokens
            found["chunk_tokens"].append(len(tokens))
            found["logprobs"] += (choice.get("logprobs") or {}).get("token_logprobs") or []
            found["finish"] = choice.get("finish_reason") or found["finish"]
    return found


if __name__ == "__main__":
    do_job(_work)

"""Logs to read: lines as vLLM's processes write them, and kept ones of real services."""

from __future__ import annotations

import json
from pathlib import Path

#: Logs of real `vllm serve` processes, shortened.
KEPT = Path(__file__).parent / "data"
OTHER = (
    b'INFO:     127.0.0.1:42078 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    b"(APIServer pid=7) INFO 11-30 10:38:48 [launcher.py:186] Available routes are:\n"
)


def line(text: str, *, pid: int = 15, time: str = "11-30 10:38:48") -> bytes:
    """One line of the plugin behind vLLM's own beginning."""
    return f"(Worker pid={pid}) INFO {time} [events.py:25] [bench-prep] {text}\n".encode()


def reserved(**where: int | str) -> bytes:
    return line("fast path reserved: vLLM 0.32.0, KV groups: 1", **where)  # type: ignore[arg-type]


def counts(dispatched: int, decode_steps: int, **others: object) -> dict[str, object]:
    """The counters in a summary; the steps that were not dispatched had several requests."""
    left = {"several requests": decode_steps - dispatched} if decode_steps > dispatched else {}
    return {
        "event": "summary",
        "pid": 15,
        "steps": decode_steps + 1,
        "decode_steps": decode_steps,
        "dispatched": dispatched,
        "fallbacks": {**left, "several tokens": 1},
        "decode_fallbacks": left,
        "checked": 0,
        "closed": None,
        **others,
    }


def summary(dispatched: int, decode_steps: int, *, pid: int = 15, **others: object) -> bytes:
    """The two lines of a summary."""
    text = f"summary: {dispatched} of {decode_steps} decode steps by the fast path"
    record = counts(dispatched, decode_steps, pid=pid, **others)
    return line(text, pid=pid) + line(json.dumps(record), pid=pid)

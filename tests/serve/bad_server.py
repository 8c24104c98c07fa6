"""A small server that misbehaves as it is told, in the protocol of the client; no vLLM in it.

It behaves badly where the fast path is on (`BENCH_PREP_FASTPATH` is not 0), and well elsewhere.
Its model's folder names the fault.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench_prep.child.channel import read_job

ON = os.environ.get("BENCH_PREP_FASTPATH") != "0"


class Handler(BaseHTTPRequestHandler):
    fault = ""
    steps = 0
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer(503 if self.fault == "never ready" else 200, {"data": [{"id": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            words = " ".join(one["content"] for one in body["messages"]).split()
            self._answer(200, {"tokens": [len(word) for word in words]})
            return
        if self.fault == "answers 500":
            self._answer(500, {"error": {"message": "the engine is not well"}})
            return
        if self.fault == "silent":
            time.sleep(60)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        tokens = [(sum(body["prompt"]) + place) % 100 for place in range(body["max_tokens"])]
        if self.fault == "other token":
            tokens[5] += 1
        if self.fault == "one token less":
            tokens.pop()
        for place, token in enumerate(tokens):
            if place == 3 and self.fault == "dies":
                print("RuntimeError: out of memory, as the log says", flush=True)
                os._exit(9)
            if place == 3 and self.fault == "hangs":
                time.sleep(60)
            if place == 3 and self.fault == "closes the stream":
                self.close_connection = True
                return
            if place == 3 and self.fault == "error in the stream":
                self._send({"error": {"message": "a request went wrong"}})
            choice: dict[str, Any] = {"index": 0, "text": f" {token}", "token_ids": [token]}
            if body["logprobs"] is not None:
                choice["logprobs"] = {"token_logprobs": [-1.0 - token / 100]}
            choice["finish_reason"] = "length" if place == len(tokens) - 1 else None
            time.sleep(0.0005)
            self._send({"choices": [choice]})
        Handler.steps += len(tokens) - 1
        if ON and self.fault != "no plugin":
            summary(Handler.steps)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(tokens)}
        self._send({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def _answer(self, status: int, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def summary(steps: int) -> None:
    """As the fast path counts them."""
    line = {"event": "summary", "pid": os.getpid(), "steps": steps, "decode_steps": steps}
    line |= {"dispatched": steps, "checked": 0, "decode_fallbacks": {}}
    print(f"[bench-prep] {json.dumps(line)}", flush=True)


def main() -> None:
    arguments = read_job()["arguments"]
    fault = (Path(arguments[1]) / "fault").read_text() if ON else ""
    if fault == "dies at start":
        print("ValueError: no such model", flush=True)
        sys.exit(3)
    if ON and fault != "no plugin":
        print("[bench-prep] fast path reserved: x", flush=True)
    elif not ON:
        print("[bench-prep] fast path not used: turned off by BENCH_PREP_FASTPATH", flush=True)
    Handler.fault = fault
    address = arguments[arguments.index("--host") + 1], int(arguments[-1])
    ThreadingHTTPServer(address, Handler).serve_forever()


if __name__ == "__main__":
    main()

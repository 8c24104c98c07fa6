"""Prepares on a stream of its own, for which nobody waits and which waits for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attach(runner: Any) -> Callable[[Any, Any], Any]:
    import torch

    own_path = runner._prepare_inputs
    stream = torch.cuda.Stream(runner.device)

    def prepare(output: Any, scheduled: Any) -> Any:
        with torch.cuda.stream(stream):
            return own_path(output, scheduled)

    return prepare


def joined_too_late(runner: Any) -> Callable[[Any, Any], Any]:
    """It waits for the forward pass's stream, which does not wait for it."""
    import torch

    own_path = runner._prepare_inputs
    stream = torch.cuda.Stream(runner.device)

    def prepare(output: Any, scheduled: Any) -> Any:
        stream.wait_stream(torch.cuda.current_stream(runner.device))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # 10 ms: who comes first does not depend on luck
            return own_path(output, scheduled)

    return prepare

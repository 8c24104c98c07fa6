"""No trick: what torch's compiler changes in the process is its own affair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled(runner: Any) -> Callable[[Any, Any], Any]:
    import torch

    own_path = runner._prepare_inputs
    add_one = torch.compile(lambda tensor: tensor + 1, backend="eager")
    mine = torch.ones(8)

    def prepare(output: Any, scheduled: Any) -> Any:
        add_one(mine)
        return own_path(output, scheduled)

    return prepare

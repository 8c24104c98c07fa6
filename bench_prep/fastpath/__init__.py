"""The fast path: one launch that writes all inputs of a strict single-token decode step.

`attach(runner)` is its entry point and the default candidate of `bench-prep run`. It imports
vLLM, and of ours `errors` and `snapshot`; its other modules are imported without torch's weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_prep.fastpath.preparer import FastPath


def attach(runner: Any) -> FastPath:
    """As `preparer.attach`, which needs torch."""
    from bench_prep.fastpath import preparer

    return preparer.attach(runner)

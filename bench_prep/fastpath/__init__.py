"""The fast path: one launch that writes all inputs of a strict single-token decode step.

`attach(runner)` is its entry point and the default candidate of `bench-prep run`. It imports
vLLM, and of ours `errors`, `log_lines` and `snapshot`.
"""

from bench_prep.fastpath.preparer import FastPath, attach

__all__ = ["FastPath", "attach"]

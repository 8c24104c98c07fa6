"""bench-prep: time vLLM's per-step input preparation, and prove what was timed."""

__version__ = "0.1.0"

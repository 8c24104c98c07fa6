"""What a server's worker needs of ours to be given random weights (`worker_extension_cls`)."""

from __future__ import annotations

from bench_prep.engine.vllm import weights  # noqa: F401  registers the load format


class RandomWeights:
    """Nothing is added to vLLM's worker: importing this module is enough."""

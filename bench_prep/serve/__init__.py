"""A whole service, A/B/A: real `vllm serve` processes, the same requests, what the user gets."""

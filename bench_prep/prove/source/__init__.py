"""Differential tests as a command: twins of real vLLM runners, fed traces of requests."""

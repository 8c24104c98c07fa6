"""What is timed: a real vLLM runner in steady single-token decode."""

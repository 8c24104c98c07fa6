"""What makes engines of vLLM."""

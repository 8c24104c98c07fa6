"""How it is timed: clocks, the A/B/A plan, statistics. Knows nothing of vLLM."""

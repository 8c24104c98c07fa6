"""Is what I time what I edited? Worktree, wheel, hashes, launch. Imports neither vLLM nor torch."""

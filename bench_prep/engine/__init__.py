"""`bench-prep engine`: the preparation inside a running engine."""

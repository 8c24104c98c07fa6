"""`bench-prep run`."""

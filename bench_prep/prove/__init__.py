"""`bench-prep prove`."""

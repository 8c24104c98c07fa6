"""A preparation under test: loaded, guarded, and checked while it is timed."""

"""Where the time of one decode step goes, in a running engine."""

"""One protocol for every process that is started."""

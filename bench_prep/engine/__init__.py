"""Whole engines: the same requests with and without the fast path give the same outputs."""

"""The results' rounds and tables, to be shown."""

from tests.results.conftest import make_frame, make_round

__all__ = ["make_frame", "make_round"]

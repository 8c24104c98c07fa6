"""What the two processes of `--against` may differ in, and what they may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench_prep.errors import BenchPrepError, OutputsDiffer
from bench_prep.run.against import _Comparison
from bench_prep.run.events import Digests, OnlyInCandidate
from bench_prep.settings import RunSettings


class Gone:
    """A process that answers nothing, so that a difference is named by its path alone."""

    def ask(self, *_: Any, **__: Any) -> Any:
        raise BenchPrepError("gone")


def comparison(events: list[Any]) -> _Comparison:
    gone: Any = Gone()
    return _Comparison(RunSettings(), gone, gone, gone, Path(), events.append)


def state(
    moved: tuple[str, ...] = (), memory: dict[str, int] | None = None, **digests: str
) -> Digests:
    named = {name.replace("__", "."): digest for name, digest in digests.items()}
    return Digests(named, list(moved), memory or {})


def test_an_attribute_that_only_the_candidate_has_is_named_and_exempt() -> None:
    events: list[Any] = []
    one = comparison(events)
    one._exempt(state(slots="a"), state(slots="a", cached="b"))
    assert events == [OnlyInCandidate(["cached"])]
    one._compare(state(slots="a"), state(slots="a", cached="c", cached__deep="d"), "now")


def test_a_buffer_is_compared_under_its_own_name_whatever_else_reaches_it() -> None:
    one = comparison([])
    one._exempt(state(slots="a"), state(cached="a", slots="a"))
    with pytest.raises(OutputsDiffer, match="outputs differ now: slots"):
        one._compare(state(slots="a"), state(cached="b", slots="b"), "now")


def test_what_the_candidate_lacks_is_a_difference() -> None:
    one = comparison([])
    one._exempt(state(slots="a", lengths="x"), state(slots="a"))
    with pytest.raises(OutputsDiffer, match="lengths"):
        one._compare(state(slots="a", lengths="x"), state(slots="a"), "now")


def test_a_list_that_grew_is_no_new_attribute() -> None:
    events: list[Any] = []
    one = comparison(events)
    found = Digests({"tokens[1]": "1"}, [], {})
    one._exempt(state(), found)
    assert events == []
    with pytest.raises(OutputsDiffer, match=r"tokens\[1\]"):
        one._compare(state(), found, "now")


def test_containers_under_a_new_attribute_are_exempt_too() -> None:
    events: list[Any] = []
    one = comparison(events)
    fresh = Digests({"cache.keys().len()": "0"}, [], {})
    later = Digests({"cache['a']": "7", "cache.keys().len()": "1"}, [], {})
    one._exempt(state(), fresh)
    assert events[0].paths == ["cache"]
    one._compare(state(), later, "now")


@pytest.mark.parametrize("moved", [(("slots",), ()), ((), ("slots",))])
def test_a_buffer_that_moves_in_one_alone(moved: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    one = comparison([])
    with pytest.raises(OutputsDiffer, match="slots moved"):
        one._compare(state(moved[0], slots="a"), state(moved[1], slots="a"), "now")
    one._compare(state(("slots",), slots="a"), state(("slots",), slots="a"), "now")


def test_a_mirror_that_is_cut_off_from_its_buffer_in_one_alone() -> None:
    one = comparison([])
    shared, cut = state(memory={"cpu": 1, "np": 1}), state(memory={"cpu": 7, "np": 8})
    one._compare(shared, state(memory={"cpu": 7, "np": 7}), "now")
    one._compare(cut, state(memory={"cpu": 1, "np": 2}), "now")
    for expected, found in ((shared, cut), (cut, shared)):
        with pytest.raises(OutputsDiffer, match="np shares memory with others in one"):
            one._compare(expected, found, "now")

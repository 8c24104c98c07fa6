"""What is said when a timing cannot end in a verdict."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench_prep.run.progress import _say_what_is_short
from bench_prep.settings import Method
from bench_prep.stages import Stages


@pytest.mark.parametrize(
    ("method", "finished_s", "said"),
    [
        (Method(), [3.0, 5.0], ""),
        (Method(budget_s=21.1), [3.0, 5.0], ""),
        (Method(rounds=10), [300.0, 500.0], ""),
        (Method(budget_s=6), [1.0, 2.0], "take about 10.0 s; give --budget 15"),
        (Method(budget_s=6, rounds=12), [1.0, 2.0], "--budget 6 is too short"),
        (Method(budget_s=1), [1.5], "the first one ended after 1.5 s; leave --budget out"),
        (Method(rounds=9), [1.0, 2.0], "--rounds 9 gives no verdict, which needs 10 rounds"),
        (Method(rounds=1), [1.0], "--rounds 1 gives no verdict"),
    ],
)  # fmt: skip
def test_what_cannot_settle_says_so(method: Method, finished_s: list[float], said: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    _say_what_is_short(method, finished_s, Stages(console))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert said in text and bool(said) == bool(text)

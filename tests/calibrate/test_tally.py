"""What counts as false and what as missed."""

from __future__ import annotations

import pandas as pd
import pytest

from bench_prep.calibrate.tally import Share, is_false, is_missed, tally


@pytest.mark.parametrize(
    ("effect", "false", "missed"),
    [
        (0.0, {"faster", "slower"}, set()),
        (0.5, {"faster"}, set()),
        (1.0, {"faster"}, set()),
        (1.5, {"faster"}, {"same"}),
        (2.0, {"faster"}, {"faster", "same", "inconclusive"}),
        (5.0, {"faster"}, {"faster", "same", "inconclusive"}),
    ],
)
def test_rules(effect: float, false: set[str], missed: set[str]) -> None:
    verdicts = {"faster", "slower", "same", "inconclusive"}
    assert {verdict for verdict in verdicts if is_false(effect, verdict)} == false
    assert {verdict for verdict in verdicts if is_missed(effect, 1.0, verdict)} == missed


def test_twice_a_margin_that_is_no_binary_fraction() -> None:
    assert is_missed(0.6, 0.3, "inconclusive")
    assert not is_missed(0.3, 0.1 + 0.2, "same")


def test_the_interval_is_exact() -> None:
    """0 of 200 and 1 of 200: Clopper and Pearson's, from (1 - p)**200 = 0.025 and their table."""
    low, high = Share(0, 200).interval
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 200))
    low, high = Share(1, 200).interval
    assert low == pytest.approx(1 - 0.975 ** (1 / 200))
    assert Share(0, 0).interval == (0.0, 1.0)


def rows(effect: float, *verdicts: tuple[str, float, float | None, float | None]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **{"work": "host", "clock": "ready", "condition": "none", "effect_pct": effect},
            **{"margin_pct": 1.0, "verdict": said, "change_pct": change},
            **{"low_pct": low, "high_pct": high, "seconds": 2.0},
        }
        for said, change, low, high in verdicts
    )


def test_a_tally() -> None:
    frame = pd.concat(
        [
            rows(0.0, ("same", 0.1, -0.2, 0.4), ("slower", 0.7, 0.2, 1.2)),
            rows(2.0, ("slower", 1.9, 1.4, 2.4), ("inconclusive", 3.0, None, None)),
        ]
    )
    equal, planted = tally(frame)
    assert (equal.effect_pct, equal.false, equal.missed) == (0.0, Share(1, 2), None)
    assert (equal.held, equal.change_pct) == (Share(1, 2), pytest.approx(0.4))
    assert (planted.false, planted.missed) == (Share(0, 2), Share(1, 2))
    assert (planted.inconclusive, planted.held) == (Share(1, 2), Share(1, 1))
    assert planted.verdicts == {"slower": 1, "inconclusive": 1}

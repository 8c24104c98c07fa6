"""The machine's state as cells of a row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench_prep.measure.doubts import doubts, unknown
from bench_prep.measure.records import Round
from bench_prep.measure.state import Span

#: Between the entries of a text cell; entries have none in them.
SEPARATOR = "; "


def machine_cells(rounds: Sequence[Round], spans: Sequence[Span]) -> dict[str, Any]:
    """The columns that say what happened to the machine; empty where nothing was read."""
    reasons = Counter(
        reason for one in rounds for reason in one.left_out.split(SEPARATOR) if reason
    )
    cells: dict[str, Any] = {
        "left_out_because": SEPARATOR.join(
            f"{reason} ({_rounds(count)})" for reason, count in reasons.items()
        )
    }
    if spans:
        ends = {"before": spans[0].before, "after": spans[-1].after}
        cells |= {
            "doubts": SEPARATOR.join(
                f"{one.text} ({one.remedy})".replace(";", ",") for one in doubts(spans)
            ),
            "unknown_state": SEPARATOR.join(unknown(spans)),
            "machine_state": json.dumps({name: state.to_json() for name, state in ends.items()}),
        }
    return cells


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"

"""Recordings of which every time is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench_prep.steps.parts import NUMBERS
from bench_prep.steps.recorder import Recording

#: Of a step of 1000: where each part begins and ends, in the runner's thread.
RUNNER_STEP = (
    ("update states", 20, 60),
    ("prepare inputs", 60, 160),
    ("attention metadata", 180, 260),
    ("preprocess", 10, 300),
    ("forward launch", 300, 500),
    ("logits", 510, 540),
    ("execute_model", 0, 550),
    ("sample", 570, 620),
    ("bookkeeping", 620, 640),
    ("bookkeeping", 640, 650),
    ("sample_tokens", 560, 660),
)
CORE_STEP = (("output handling", 800, 830), ("schedule", 840, 900))


def recording(*records: tuple[str, int, int], process: int = 1, thread: int = 1) -> Recording:
    """Of name, begin and end each."""
    table = [(NUMBERS[name], begin, end) for name, begin, end in records]
    return Recording(process, thread, np.array(table, dtype=np.int64).reshape(-1, 3))


def repeated(
    step: Sequence[tuple[str, int, int]], begins: Sequence[int], process: int = 1
) -> Recording:
    """The same step at each of `begins`."""
    return recording(
        *((name, at + begin, at + end) for at in begins for name, begin, end in step),
        process=process,
    )

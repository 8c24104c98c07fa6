"""The smallest correct candidate: vLLM's own preparation, timed against itself.

    bench-prep run --candidate examples/same_path.py:attach

A run of it shows what the machine's noise looks like when there is nothing to gain.

A candidate is named `file.py:attribute` or `module:attribute`. The attribute is a factory:

    factory(runner) -> prepare

`runner` is vLLM's `GPUModelRunner` of the arm under test; its twin, the baseline, is another
one. `prepare` takes the place of `GPUModelRunner._prepare_inputs`:

    prepare(scheduler_output, num_scheduled_tokens) -> what `_prepare_inputs` returns

`scheduler_output` is vLLM's `SchedulerOutput`, `num_scheduled_tokens` an int32 array with the
number of new tokens of each request. It is called once in every step, a request's prefill
included, after `_update_states`. Its result and the whole state of its runner must equal the
twin's after each step of the proof, and at steps that are drawn while they are timed, on requests
that are new in each slice.

What it may do, and what ends the run:

- It writes its own runner's buffers, in its call. It keeps its own state outside the runner.
- All of a step's work is on the current stream, or the current stream waits for it, when the call
  returns. No thread or process of its own lives while steps are timed.
- It writes token ids, positions, lengths and slots anew: before a checked step they are filled
  with garbage. What vLLM's own path leaves alike from step to step need not be written again.
- It may wrap the methods of its runner's block tables, to hear of writes that are not its own; the
  time in them is looked at. It replaces no other method of its runner, and nothing that the
  baseline, the proof or the clock run: no code of vLLM, torch, NumPy or bench-prep, no setting of
  the process.

`prepare` may have two attributes:

    dispatched   int: the steps that it prepared itself. The share of such steps is reported, and
                 a run in which there are none is refused, because nothing of it would be timed.
    fallbacks    a mapping from the reasons for which it left steps to vLLM's own path to their
                 numbers; the most frequent reason is shown when a run is refused.

The timing process works in an empty folder and without `PYTHONPATH`: a module must be installed,
and what a file imports besides the standard library must be, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attach(runner: Any) -> Callable[[Any, Any], Any]:
    """vLLM's own preparation of this runner."""
    prepare: Callable[[Any, Any], Any] = runner._prepare_inputs
    return prepare

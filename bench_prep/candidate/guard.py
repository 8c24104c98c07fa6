"""A candidate changes its own runner's buffers in its timed call, and nothing else.

What is looked at, and when, is one list for all tricks: code and settings that both arms share,
the code on the candidate's runner, its threads, and the processor time of the whole process.
"""

from __future__ import annotations

import re
import types
from typing import Any

from bench_prep.candidate.effort import MovedWork, Threads
from bench_prep.candidate.integrity import Integrity
from bench_prep.errors import UsageError
from bench_prep.snapshot import kinds

#: Methods of the runner that a candidate may wrap, to hear of writes that are not its own: those
#: of the block tables, and the dummy run, which no run of ours calls.
MAY_WRAP = re.compile(r"(_dummy_run|input_batch\.block_table\.block_tables\[\d+\]\.[a-z_]+)$")


class Guard:
    """Made before anything of the candidate runs; `runner` is its own, the other its twin.

    `of_process` is the guard of another pair of this process, which looks at the process for both.
    """

    def __init__(self, baseline_runner: Any, runner: Any, of_process: Guard | None = None) -> None:
        self.runners = baseline_runner, runner
        self._baseline = kinds(baseline_runner)
        self._configuration = repr(baseline_runner.vllm_config)
        self.integrity: Integrity = Integrity() if of_process is None else of_process.integrity
        self.threads: Threads = Threads() if of_process is None else of_process.threads
        self.moved = MovedWork()

    def require(self, name: str) -> None:
        """All is as it was, but for the buffers of candidate `name`'s runner.

        Raises:
            UsageError: naming what is not.
        """
        self.require_code(name)
        self.threads.require_none(name)

    def require_code(self, name: str) -> None:
        """The same, as long as nothing is timed: what is made ready may be so on a thread.

        Raises:
            UsageError: as `require`.
        """
        self.integrity.require(name)
        self._require_own_runner(name)

    def _require_own_runner(self, name: str) -> None:
        if any(repr(runner.vllm_config) != self._configuration for runner in self.runners):
            raise UsageError(
                f"--candidate {name} changes vLLM's configuration, which both runners have",
                "change nothing but the candidate's runner",
            )
        expected, found = map(kinds, self.runners)
        for path, one in expected.items():
            before = self._baseline.get(path)
            if one != before and (before is not None or _runs(one)):
                raise UsageError(
                    f"--candidate {name} changes {path} of the baseline's runner",
                    "change nothing but the candidate's runner",
                )
        for path in sorted({*expected, *found}):
            one, other = expected.get(path), found.get(path)
            # Data in one alone is the comparison's to find, with its values.
            if one == other or other is None or (one is None and not _runs(other)):
                continue
            if one is None and MAY_WRAP.match(path):
                continue
            what = f"{path} of its runner" if path else "its runner's class"
            raise UsageError(
                f"--candidate {name} replaces {what}, which runs between the timed calls",
                "change nothing but the returned preparation; or change a worktree, with --against",
            )


def _runs(kind: Any) -> bool:
    """Whether what is of this kind (`snapshot.kinds`) can be called."""
    if isinstance(kind, type):
        return any("__call__" in vars(cls) for cls in kind.__mro__)
    return isinstance(kind, types.CodeType | tuple)

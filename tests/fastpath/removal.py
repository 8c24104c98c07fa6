"""Gates with one condition removed, and whether twins then differ."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from bench_prep.errors import OutputsDiffer
from bench_prep.fastpath import gates, preparer
from bench_prep.prove.source.twins import Twins
from bench_prep.settings import RunSettings

SETTINGS = RunSettings(
    position=100, max_model_len=512, max_num_reqs=6, max_num_tokens=128, block_sizes=(16, 32)
)


class _Without(ast.NodeTransformer):
    """Removes each `if ...: return REASON` that contains `part`, of an `or` only that part."""

    def __init__(self, reason: str, part: str) -> None:
        self.reason, self.part, self.removed = reason, part, 0

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        match node.body:
            case [ast.Return(ast.Name(name))] if getattr(gates, name) == self.reason:
                pass
            case _:
                return node
        test = node.test
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and self.part:
            kept = [value for value in test.values if self.part not in ast.unparse(value)]
            self.removed += len(test.values) - len(kept)
            node.test = ast.BoolOp(ast.Or(), kept)
            return node
        if self.part not in ast.unparse(test):
            return node
        self.removed += 1
        return node.orelse or ast.Pass()


def remove_step_condition(monkeypatch: pytest.MonkeyPatch, reason: str, part: str = "") -> None:
    """Compile `step_gate` anew without the condition, so that it stays inline in the gate."""
    gate = gates.step_gate
    tree = ast.parse(_sources.get(gate) or textwrap.dedent(inspect.getsource(gate)))
    without = _Without(reason, part)
    tree = ast.fix_missing_locations(without.visit(tree))
    assert without.removed, f"no such condition: {reason} {part}"
    namespace: dict[str, Any] = {}
    exec(compile(tree, "<gate>", "exec"), vars(gates) | {"__name__": "gate"}, namespace)
    _sources[namespace["step_gate"]] = ast.unparse(tree)
    monkeypatch.setattr(preparer, "step_gate", namespace["step_gate"])
    monkeypatch.setattr(gates, "step_gate", namespace["step_gate"])


#: The source of gates that were made here, so that one more condition can be removed.
_sources: dict[Any, str] = {}


def remove_service_condition(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Ask for every condition of the service gate but this one."""
    kept = tuple(c for c in gates.SERVICE_GATE if c.name != name)
    assert len(kept) == len(gates.SERVICE_GATE) - 1
    monkeypatch.setattr(gates, "SERVICE_GATE", kept)


def twins(
    settings: RunSettings = SETTINGS,
    each: Callable[[Any], None] | None = None,
    kind: type[Twins] = Twins,
    **options: Any,
) -> tuple[Twins, Any]:
    """Two real runners, `each` prepared alike, the second one with the fast path.

    `options` are those of `kind`.
    """
    from bench_prep.decode.runner import make_runners
    from bench_prep.fastpath import attach

    baseline, runner = make_runners(settings, 2)
    for one in (baseline, runner):
        if each is not None:
            each(one)
    candidate = attach(runner)
    return kind(baseline, runner, candidate, settings.block_sizes, **options), candidate


def difference(both: Twins, candidate: Any, trace: Callable[[Twins], None]) -> str | None:
    """Where the twins differ after the trace, or what the fast path raised in it; else None."""
    try:
        trace(both)
    except OutputsDiffer as error:
        return str(error)
    return candidate.closed  # type: ignore[no-any-return]

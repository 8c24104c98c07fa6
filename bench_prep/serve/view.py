"""A tier as a person reads it: three servers side by side, and what is said about them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench_prep.measure.doubts import OTHER_WORK
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT
from bench_prep.serve.answers import ARMS, Answer, Answers, percentiles_ms, tokens_per_s
from bench_prep.serve.figures import (
    LOGPROBS_DIFFER,
    OTHERS_WORKED,
    SERVERS_DIFFER,
    Judged,
    Limits,
    TierResult,
    correct,
)
from bench_prep.serve.store import values_of

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "inter-token", "latency": "latency"}
_HEADS = {"baseline_before": "without", "candidate": "with", "baseline_after": "without"}
_OF = "of the warm-up's answer"
_COLOURS = {"faster": "green", "slower": "red", "different": "red", "inconclusive": "yellow"}


def tier_view(
    tier: str, arms: Mapping[str, Answers], result: TierResult | None, limits: Limits
) -> RenderableType:
    """A table of milliseconds, and below it lengths, equality, service level and accuracy."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    names = [name for name in ARMS if name in arms]
    for name in names:
        table.add_column(_HEADS[name] if len(names) > 1 else "", justify="right")
    for name in ("change", "verdict") if result else ():
        table.add_column(name, justify="right", no_wrap=True)
    for metric, name in _NAMES.items():
        values = [percentiles_ms(values_of(metric, arms[arm].timed)) for arm in names]
        judged = result.metrics.get(metric) if result else None
        for index, which in enumerate(("", " p95", " p99")):
            cells = [f"{one[index]:.3f}" for one in values]
            table.add_row(f"{name}{which}, ms", *cells, *(_said(judged) if not index else ()))
    table.add_row("tokens/s", *(f"{tokens_per_s(arms[a].timed):.1f}" for a in names))
    shown: list[RenderableType] = [Text(""), Text(f"Prompts of {tier} tokens", style="bold"), table]
    shown += [Text(line) for line in _lines({name: arms[name] for name in names}, result, limits)]
    return Group(*shown)


def _said(judged: Judged | None) -> tuple[str | Text, ...]:
    if judged is None:
        return ()
    return f"{100 * judged.effect.value:+.1f} %", Text(
        judged.verdict, style=_COLOURS.get(judged.verdict, "")
    )


def _change(judged: Judged) -> str:
    """The interval of the effect, where there is one, what is saved, and the drift."""
    effect, figures = judged.effect, judged.figures
    ends = ""
    if effect.low is not None and effect.high is not None:
        ends = f" ({100 * effect.low:+.1f} to {100 * effect.high:+.1f}, 99.8 %)"
    if judged.verdict == "inconclusive":
        return (
            f"is not shown to change: measured {100 * effect.value:+.1f} %{ends}, and a drift of "
            f"{100 * figures.drift.median:.1f} %"
        )
    return (
        f"changes by {100 * effect.value:+.1f} %{ends}, saves {judged.saved_ms:.4f} ms; "
        f"drift {100 * figures.drift.median:.1f} %"
    )


def _lines(arms: Mapping[str, Answers], result: TierResult | None, limits: Limits) -> list[str]:
    tokens = [str(sum(len(one.tokens) for one in found.timed)) for found in arms.values()]
    lengths = _lengths(next(iter(arms.values())).timed)
    lines = [f"Generated tokens: {' / '.join(tokens)} (requests of {lengths})."]
    for name, count in (("Within the service level", limits.met), ("Exact answers", correct)):
        found = [count(one.timed) for one in arms.values()]
        if any(one is not None for one in found):
            lines.append(f"{name}: {' / '.join(str(one) for one in found)} requests.")
    if result is None:
        return lines
    lines += [f"{_NAMES[name]} {_change(one)}." for name, one in result.metrics.items()]
    if result.unstable:
        lines.append(f"vLLM's own two servers answer differently: {result.unstable}.")
    elif not result.difference:
        lines.append(f"Outputs: identical, token by token{_logprobs(result)}.")
    refused = {name: why for name, why in result.late.items() if name not in result.metrics}
    refused |= {name: one.refused for name, one in result.metrics.items() if one.refused}
    lines += [f"No verdict for {text}." for text in _together(refused)]
    lines += _beside(list(arms.values()))
    remedies = {name: _todo(one) for name, one in result.metrics.items()}
    return [*lines, *(f"What to do for {text}." for text in _together(remedies))]


def _together(texts: Mapping[str, str]) -> Iterator[str]:
    """Each text once, after the metrics that it is of."""
    for text in dict.fromkeys(filter(None, texts.values())):
        names = [_NAMES[name] for name, other in texts.items() if other == text]
        yield f"{', '.join(names)}: {text}"


def _beside(arms: list[Answers]) -> list[str]:
    """Other work of which a run would say that it makes the result doubtful."""
    found = [one.other_work for one in arms if one.other_work is not None]
    if len(found) < len(arms) or all(one.busy <= OTHER_WORK * one.processors for one in found):
        return []
    busy = " / ".join(f"{one.busy:.1f}" for one in found)
    return [f"Other work kept {busy} of {found[0].processors} processors busy meanwhile."]


def _logprobs(result: TierResult) -> str:
    """How far they are apart, beside how far vLLM's own two servers' are."""
    if result.logprobs is None:
        return ""
    if not result.logprobs and not result.own_logprobs:
        return f"; log-probabilities {_OF} are equal to the bit"
    own = result.own_logprobs or 0.0
    if math.isinf(result.logprobs) or math.isinf(own):
        return f"; log-probabilities {_OF} are not known of all tokens"
    return (
        f"; log-probabilities {_OF} differ by at most {result.logprobs:.3g}, "
        f"vLLM's own two servers' by {own:.3g}"
    )


def _todo(one: Judged) -> str:
    """What may settle it, if anything."""
    if one.verdict != "inconclusive":
        return ""
    if LOGPROBS_DIFFER in one.refused:
        return "run again; if they differ again, find out why before you use the candidate"
    if SERVERS_DIFFER in one.refused or OTHERS_WORKED in one.refused:
        return "run again on a quieter machine"
    if one.effect.low is None:
        return f"give more --requests, a verdict needs {ROUNDS_FOR_VERDICT}"
    return "" if one.refused else "give more --requests"


def _lengths(answers: tuple[Answer, ...]) -> str:
    counts = Counter(len(one.tokens) for one in answers)
    return ", ".join(f"{length} ({count})" for length, count in sorted(counts.items()))

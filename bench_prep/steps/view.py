"""A step as a person reads it: a bar for each part, and what follows from them."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench_prep.measure.comparison import Judgement
from bench_prep.measure.verdict import ROUNDS_FOR_VERDICT, Effect
from bench_prep.steps.frames import BESIDE, DEVICE, WAIT, Arm
from bench_prep.steps.limits import waiting
from bench_prep.steps.parts import FAST
from bench_prep.steps.result import MARGIN, MOST_PROBE_COST, Found
from bench_prep.steps.store import PLAIN, STEP, figures, parts_of

_BAR = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_TITLES = {FAST: "With the fast path"}


def bar(share: float, width: int = _BAR) -> str:
    """A share from 0 to 1 as a bar of `width` characters, in eighths of one."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def view(found: Found) -> RenderableType:
    """All arms, one below the other, and the change from one to the other."""
    shown: list[RenderableType] = []
    medians: dict[str, float] = {}
    for arm in found.arms:
        shown += [Text(""), Text(_TITLES.get(arm.name, "vLLM's own preparation"), style="bold")]
        shown.append(_table(arm, medians))
        shown.append(Text(f"Who waits: {waiting(arm)}."))
        if arm.blocked:
            inside = ", ".join(f"{name} {ns / 1000:.0f} us" for name, ns in arm.blocked.items())
            shown.append(Text(f"Inside these parts the host waits for the device: {inside}."))
        shown.append(_probes(found, arm))
        medians = {part.name: part.median for part, _ in parts_of(arm)}
    if found.change is not None:
        change = found.change
        shown += [
            Text(""),
            Text(f"The fast path changes the step by {_range(change.effect)}: {change.verdict}."),
        ]
        if change.verdict == "inconclusive":
            shown.append(Text(f"Inconclusive: {_why(change)}. Give more --rounds."))
    shown.append(
        Text(
            "At most: what the step (TPOT) can lose if the part takes no time, by what the other "
            "side still works; side effects, such as evicted caches, come on top.",
            style="dim",
        )
    )
    return Group(*shown)


def _why(change: Judgement) -> str:
    if change.withheld:
        return change.withheld
    if change.effect.low is None:
        return f"a verdict needs {ROUNDS_FOR_VERDICT} rounds"
    return f"the interval shows neither a change nor one within {100 * MARGIN:g} %"


def _table(arm: Arm, before: dict[str, float]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    several = len({part.where for part in arm.parts}) > 1 or arm.device is not None
    table.add_column("part", no_wrap=True)
    table.add_column("", width=_BAR)
    for name in ("us", "5-95 %", "of step", "at most", *(["was"] if before else [])):
        table.add_column(name, justify="right", overflow="fold")
    found = parts_of(arm)
    places = list(dict.fromkeys(part.where for part, _ in found))
    place = ""
    for part, most in sorted(found, key=lambda one: places.index(one[0].where)):
        if several and part.where and part.where != place:
            place = part.where
            table.add_row(Text(f"{place}:", style="bold"))
        cells = figures(arm, part, most)
        style = "dim" if part.kind == WAIT or part.where == BESIDE else _color(part.where)
        whole = part.name in (STEP, PLAIN)
        table.add_row(
            Text(part.name, style="bold" if whole else ""),
            Text(bar(cells["share_pct"] / 100), style=style),
            f"{cells['median_us']:.0f}",
            f"{cells['p5_us']:.0f}-{cells['p95_us']:.0f}",
            f"{cells['share_pct']:.1f} %",
            "" if most is None else f"-{cells['most_saved_pct']:.1f} %",
            *([f"{before[part.name] / 1000:.0f}" if part.name in before else ""] if before else []),
        )
    return table


def _color(where: str) -> str:
    return "green" if where == DEVICE else "cyan"


def _probes(found: Found, arm: Arm) -> Text:
    cost = found.costs[arm.name]
    text = (
        f"Probes: {arm.records:.0f} records of {max(found.record_ns):.0f} ns are "
        f"{100 * cost.counted:.2f} % of the step; steps with them against steps without: "
        f"{_range(cost.measured)}."
    )
    if cost.too_much:
        text += f" More than {100 * MOST_PROBE_COST:.0f} %: small parts look larger than they are."
    return Text(text, style="yellow" if cost.too_much else "")


def _range(effect: Effect) -> str:
    if effect.low is None or effect.high is None:
        return f"{100 * effect.value:+.1f} % (too few rounds for an interval)"
    return f"{100 * effect.value:+.1f} % ({100 * effect.low:+.1f} to {100 * effect.high:+.1f})"

"""What is said about a tier: paired figures, the verdict, and what refuses it.

The pair is one request, answered by the three servers: its effect is that of `measure.verdict`,
its drift and savings those of `measure.statistics`. An interval over requests does not know how
much two starts of the same server differ; the two baseline servers show it, so a gain counts only
if the candidate is further from the nearer one than they are from each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench_prep.measure.doubts import OTHER_WORK
from bench_prep.measure.statistics import Figures, compare, over_rounds
from bench_prep.measure.verdict import (
    Effect,
    Verdict,
    effect_of,
    log_ratio,
    starts_differ,
    verdict,
    walsh_interval,
)
from bench_prep.serve.answers import (
    ARMS,
    Answer,
    Answers,
    first_difference,
    logprob_difference,
)
from bench_prep.serve.other_work import OtherWork

#: What a request is measured by; one value of each, in seconds.
METRICS: dict[str, Callable[[Answer], float]] = {
    "ttft": lambda one: one.ttft,
    "tpot": lambda one: one.tpot,
    "itl": lambda one: float(np.median(one.itl)) if one.itl else math.nan,
    "latency": lambda one: one.latency,
}
#: The largest share of tokens, or answers, that came too late for what is asked of them.
MOST_LATE = 0.1
#: Two starts of the same server do so on a machine that is busy with other things, too.
SERVERS_DIFFER = "vLLM's own two servers differ by"
#: So it can look like a difference between two servers.
OTHERS_WORKED = "other work kept"
#: As a wrong KV slot makes them that changes no token.
LOGPROBS_DIFFER = "log-probabilities differ"
#: So many times as far as vLLM's own two servers' they may: a largest difference scatters.
FARTHER = 10
#: By which the exit code is chosen: what each further token costs.
DECISIVE = "tpot"


@dataclass(frozen=True)
class Limits:
    """The service level that is asked of each request, in milliseconds; None: nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met(self, answers: Sequence[Answer]) -> int | None:
        """Of how many requests all limits hold; None without limits."""
        if self.ttft_ms is None and self.tpot_ms is None:
            return None
        return sum(
            (self.ttft_ms is None or 1000 * one.ttft <= self.ttft_ms)
            # One token has no TPOT to be too slow; a stream that does not show it is not within.
            and (self.tpot_ms is None or len(one.tokens) < 2 or 1000 * one.tpot <= self.tpot_ms)
            for one in answers
        )


@dataclass(frozen=True)
class Judged:
    """One metric of one tier. `saved_ms`: per token or request, with the verdict's interval."""

    verdict: Verdict
    effect: Effect
    figures: Figures
    saved_ms: float
    saved_low_ms: float | None
    saved_high_ms: float | None
    refused: str = ""


@dataclass(frozen=True)
class TierResult:
    """All of a tier.

    Attributes:
        unstable: how vLLM's own two servers differ; "" where they do not.
        difference: how the candidate differs from the first of them.
        logprobs: the largest difference of a log-probability, of those two.
        own_logprobs: the same of vLLM's own two servers.
        unused: why the fast path was not used; "" if it was.
        late: of each metric that the stream does not show, why; the latency is always shown.
        metrics: each one's judgement.
    """

    unstable: str
    difference: str
    logprobs: float | None
    own_logprobs: float | None
    unused: str
    late: dict[str, str]
    metrics: dict[str, Judged]

    def doubt(self, metric: str) -> str:
        """Why nothing follows from what was measured of a metric; "" where something does."""
        unused = self.unused and f"the fast path was not used: {self.unused}"
        late, refused = self.late.get(metric, ""), self.metrics[metric].refused
        return self.unstable or self.difference or unused or late or refused


def correct(answers: Sequence[Answer]) -> int | None:
    """Exact matches; None where no answer is expected."""
    known = [one.correct for one in answers if one.correct is not None]
    return sum(known) if known else None


def judge_tiers(
    arms: Mapping[str, Mapping[str, Answers]], margin: float, limits: Limits, unused: str
) -> dict[str, TierResult]:
    """All tiers of `arms`, arm -> tier -> answers, as `judge_tier`."""
    tiers = {tier: {arm: arms[arm][tier] for arm in ARMS} for tier in arms[ARMS[0]]}
    own = (logprob_difference(one[ARMS[0]], one[ARMS[2]]) for one in tiers.values())
    noise = max((one for one in own if one is not None and math.isfinite(one)), default=0.0)
    return {tier: judge_tier(one, margin, limits, unused, noise) for tier, one in tiers.items()}


def judge_tier(
    arms: Mapping[str, Answers], margin: float, limits: Limits, unused: str, noise: float = 0.0
) -> TierResult:
    """The verdicts of a tier.

    `unused` says why the fast path was not used, "" if it was; `noise` is how far vLLM's own two
    servers' log-probabilities are apart in other tiers.
    """
    before, candidate, after = (arms[name] for name in ARMS)
    unstable = first_difference(before, after)
    difference = first_difference(before, candidate)
    logprobs = logprob_difference(before, candidate)
    own_logprobs = logprob_difference(before, after)
    reasons = _reasons(arms, limits, unused)
    reasons += _other_logprobs(logprobs or 0.0, own_logprobs or 0.0, noise)
    always = [f"vLLM's own two servers answer differently ({unstable})"] if unstable else []
    equal = not difference or bool(unstable)
    late = _late(arms)
    beside = [arms[arm].other_work for arm in ARMS]
    metrics = {}
    for name, value in METRICS.items():
        rounds = zip(*([value(one) for one in arms[arm].timed] for arm in ARMS), strict=True)
        known = [one for one in rounds if all(math.isfinite(v) and v > 0 for v in one)]
        if known:
            doubts = [*always, late[name]] if name in late else always
            metrics[name] = judge(known, margin, equal, reasons, doubts, beside)
    return TierResult(unstable, difference, logprobs, own_logprobs, unused, late, metrics)


def judge(
    rounds: Sequence[tuple[float, ...]],
    margin: float,
    equal: bool,
    reasons: Sequence[str] = (),
    always: Sequence[str] = (),
    beside: Sequence[OtherWork | None] = (),
) -> Judged:
    """The verdict on requests: of each the three arms' values, in seconds.

    `reasons` refuse "faster", `always` any verdict on times; `beside` is what other processes did
    meanwhile, for each arm.
    """
    effect = effect_of([log_ratio(*one) for one in rounds])
    said = verdict(effect, margin, equal)
    saved = walsh_interval([1000 * ((before + after) / 2 - c) for before, c, after in rounds])
    found = Judged(
        said,
        effect,
        over_rounds([compare(*(1000 * one for one in times)) for times in rounds]),
        *saved,
    )
    if said == "different":
        return found
    refused = [*(reasons if said == "faster" else ()), *always]
    if said in ("faster", "slower", "same"):
        refused += _doubt(rounds, said, margin) + _uneven(beside, said)
    if not refused:
        return found
    return replace(found, verdict="inconclusive", refused="; ".join(refused))


def _doubt(rounds: Sequence[tuple[float, ...]], said: Verdict, margin: float) -> list[str]:
    """Whether two starts of the same server differ as much as what is said."""
    differ = starts_differ(rounds, said, margin)
    return [] if differ is None else [f"{SERVERS_DIFFER} {100 * differ:.1f} %"]


def _uneven(beside: Sequence[OtherWork | None], said: Verdict) -> list[str]:
    """Whether other work was beside the servers that would make this of equal ones."""
    known = [one for one in beside if one is not None]
    if len(known) != len(ARMS):
        return []
    before, candidate, after = (one.busy for one in known)
    more = {
        "faster": min(before, after) - candidate,
        "slower": candidate - max(before, after),
        "same": max(abs(candidate - before), abs(candidate - after)),
    }[said]
    if more <= OTHER_WORK * known[0].processors:
        return []
    return [
        f"{OTHERS_WORKED} {before:.1f}, {candidate:.1f} and {after:.1f} of {known[0].processors} "
        "processors busy beside the three servers"
    ]


def together(answers: Sequence[Answer]) -> float:
    """The mean share of tokens that came together with the one before."""
    return float(np.mean([one.together for one in answers]))


def _late(arms: Mapping[str, Answers]) -> dict[str, str]:
    """Of each metric that the stream does not show, why: tokens came later than they were made."""

    def worst(share: Callable[[Answer], float]) -> float:
        return max(float(np.mean([share(one) for one in arms[arm].timed])) for arm in ARMS)

    shares = {
        "ttft": (
            worst(lambda one: one.first_instant[0] > 1),
            "of a server's answers began with several tokens in one instant",
        ),
        "tpot": (
            worst(lambda one: len(one.tokens) > 1 and math.isnan(one.tpot)),
            "of a server's answers came, for the most part, in one instant",
        ),
        "itl": (
            worst(lambda one: one.together),
            "of a server's tokens came together with the one before",
        ),
    }
    return {
        name: f"{100 * share:.0f} % {what}, so the stream does not show when tokens were made "
        "(busy cores?)"
        for name, (share, what) in shares.items()
        if share > MOST_LATE
    }


def _other_logprobs(apart: float, own: float, noise: float) -> list[str]:
    """Whether the candidate's are further from vLLM's own than these are from each other."""
    if math.isinf(apart) or math.isinf(own):
        return [f"{LOGPROBS_DIFFER}: some are missing"]
    own = max(own, noise)
    if apart <= FARTHER * own:
        return []
    return [f"{LOGPROBS_DIFFER} by up to {apart:.3g}, and vLLM's own two servers' by {own:.3g}"]


def _reasons(arms: Mapping[str, Answers], limits: Limits, unused: str) -> list[str]:
    """Why "faster" may not be said, whatever the times are, besides other outputs."""
    reasons = [f"the fast path was not used: {unused}"] if unused else []
    lengths = [[len(one.tokens) for one in arms[name].all] for name in ARMS]
    if lengths[1] not in (lengths[0], lengths[2]):
        reasons.append("other output lengths")
    for name, count in (("the service level", limits.met), ("accuracy", correct)):
        before, candidate, after = (count(arms[arm].timed) for arm in ARMS)
        if candidate is not None and candidate < max(before or 0, after or 0):
            reasons.append(f"{name} is worse: {candidate} requests instead of {before} and {after}")
    return reasons

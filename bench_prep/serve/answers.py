"""What a service answered, and where the answers of two arms differ first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench_prep.serve.events import Answered
from bench_prep.serve.other_work import OtherWork

#: The servers of a comparison, in the order in which they run.
ARMS = ("baseline_before", "candidate", "baseline_after")
#: Seconds, less than any decode step: two tokens so close were made earlier, and came late.
AN_INSTANT = 50e-6
#: The share of an answer that must come after its first instant for a TPOT.
LEAST_AFTER = 0.5


@dataclass(frozen=True)
class Answer:
    """One request's answer; times in seconds, from the client's sending of the request.

    Attributes:
        itl: from one chunk of the stream to the next; a chunk is one token unless the client, or
            the server's own front end, was late.
        chunks: the tokens of each chunk.
        logprobs: of the chosen tokens, where they were asked for; NaN where it is no number.
        expected: the answer that a dataset gives, if it does.
    """

    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str
    finish: str
    ttft: float
    latency: float
    itl: tuple[float, ...]
    chunks: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    expected: str | None = None

    @classmethod
    def of(cls, event: Answered, prompt_tokens: int, expected: str | None) -> Answer:
        """From what the client's process sent."""
        return cls(
            prompt_tokens=event.prompt_tokens or prompt_tokens,
            tokens=tuple(event.tokens),
            text=event.text,
            finish=event.finish or "",
            ttft=event.ttft_s,
            latency=event.latency_s,
            itl=tuple(event.itl_s),
            chunks=tuple(event.chunk_tokens),
            logprobs=tuple(math.nan if one is None else one for one in event.logprobs),
            expected=expected,
        )

    @property
    def tpot(self) -> float:
        """(latency - TTFT) / (output tokens - 1), as `vllm bench serve`; NaN for one token.

        Where more than one came first, from then on: the last one's time less theirs, by the
        tokens after them; NaN if these are less than `LEAST_AFTER` of the answer.
        """
        together, seconds = self.first_instant
        after = len(self.tokens) - together
        if after < LEAST_AFTER * (len(self.tokens) - 1) or not after:
            return float("nan")
        return (self.latency - self.ttft - seconds) / after

    @property
    def first_instant(self) -> tuple[int, float]:
        """The tokens that came in it, 1 in a stream that is not late; and how long it was."""
        tokens, seconds = self.chunks[0], 0.0
        for gap, more in zip(self.itl, self.chunks[1:], strict=False):
            if gap >= AN_INSTANT:
                break
            tokens, seconds = tokens + more, seconds + gap
        return max(tokens, 1), seconds

    @property
    def together(self) -> float:
        """The share of its tokens that the client saw in the same instant as the one before."""
        more = len(self.tokens) - 1
        late = sum(count - 1 for count in self.chunks if count > 1)
        late += sum(one < AN_INSTANT for one in self.itl)
        return late / more if more > 0 else 0.0

    @property
    def correct(self) -> bool | None:
        """Exactly the expected answer, but for white space around it; None without one."""
        return None if self.expected is None else self.text.strip() == self.expected.strip()


@dataclass(frozen=True)
class Answers:
    """One arm's answers to one tier; `warmup` is compared too, and has log-probabilities.

    `other_work` is of other processes while it answered.
    """

    warmup: Answer
    timed: tuple[Answer, ...]
    other_work: OtherWork | None = None

    @property
    def all(self) -> tuple[Answer, ...]:
        return (self.warmup, *self.timed)


def first_difference(one: Answers, other: Answers) -> str:
    """The first token that differs, or the length, in words; "" where all are the same."""
    for index, (here, there) in enumerate(zip(one.all, other.all, strict=True)):
        name = f"request {index}" if index else "the warm-up request"
        for place, (a, b) in enumerate(zip(here.tokens, there.tokens, strict=False)):
            if a != b:
                return f"{name}, output token {place}: expected {a}, found {b}"
        if len(here.tokens) != len(there.tokens):
            return f"{name}: expected {len(here.tokens)} tokens, found {len(there.tokens)}"
        if here.finish != there.finish:
            return f"{name}: expected to end by {here.finish}, found {there.finish}"
        if here.text != there.text:
            return f"{name}: the same tokens, another text"
    return ""


def logprob_difference(one: Answers, other: Answers) -> float | None:
    """The largest difference of a chosen token's log-probability; infinite where one is missing.

    Up to the first other token: what follows answers another text. None where that is the first.
    """
    here, there = one.warmup, other.warmup
    same = next(
        (i for i, (a, b) in enumerate(zip(here.tokens, there.tokens, strict=False)) if a != b),
        min(len(here.tokens), len(there.tokens)),
    )
    if min(len(here.logprobs), len(there.logprobs)) < same:
        return math.inf
    pairs = zip(here.logprobs[:same], there.logprobs[:same], strict=True)
    return max((_apart(a, b) for a, b in pairs), default=None)


def _apart(one: float, other: float) -> float:
    """How far two numbers are; infinite of what is none."""
    apart = 0.0 if one == other else abs(one - other)
    return math.inf if math.isnan(apart) else apart


def percentiles_ms(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th and 99th percentile in milliseconds, linear between two values; NaN of none."""
    if not len(seconds):
        return (float("nan"),) * 3
    p50, p95, p99 = (1000 * float(v) for v in np.percentile(seconds, [50, 95, 99]))
    return p50, p95, p99


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """Output throughput of requests one at a time: all their tokens by all their time."""
    return sum(len(one.tokens) for one in answers) / sum(one.latency for one in answers)

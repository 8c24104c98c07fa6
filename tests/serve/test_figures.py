"""The verdict of a tier: what is said, and everything that refuses it."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from bench_prep.errors import UsageError
from bench_prep.measure.verdict import Verdict
from bench_prep.results.row import COLUMNS
from bench_prep.serve.answers import (
    ARMS,
    Answer,
    Answers,
    first_difference,
    logprob_difference,
    percentiles_ms,
    tokens_per_s,
)
from bench_prep.serve.figures import Limits, TierResult, judge_tier, judge_tiers
from bench_prep.serve.other_work import OtherWork
from bench_prep.serve.predicted import Predicted, predicted_by, prediction
from bench_prep.serve.view import tier_view
from bench_prep.settings import OF_WORKTREE

RESULTS = Path(__file__).resolve().parents[2] / "results"
TOKENS = 21
#: Of 12 requests: what each brings of its own, and noise of 0.2 %.
NOISE = random.Random(1)


def answer(tpot: float, **changes: object) -> Answer:
    one = Answer(
        prompt_tokens=10,
        tokens=tuple(range(TOKENS)),
        text="text",
        finish="length",
        ttft=0.1,
        latency=0.1 + tpot * (TOKENS - 1),
        itl=(tpot,) * (TOKENS - 1),
        chunks=(1,) * TOKENS,
        logprobs=(-1.0,) * TOKENS,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def arms(before: float, candidate: float, after: float) -> dict[str, Answers]:
    made = {}
    for arm, factor in zip(ARMS, (before, candidate, after), strict=True):
        tpots = [factor * (0.02 + 0.001 * i) * NOISE.uniform(0.999, 1.001) for i in range(12)]
        made[arm] = Answers(answer(0.02), tuple(answer(one) for one in tpots))
    return made


def said(found: dict[str, Answers], limits: Limits | None = None, unused: str = "") -> Verdict:
    return judge_tier(found, 0.01, limits or Limits(), unused).metrics["tpot"].verdict


def shown(found: dict[str, Answers], result: TierResult) -> str:
    """What is printed of a tier."""
    file = io.StringIO()
    Console(file=file, width=200).print(tier_view("4-8", found, result, Limits()))
    return file.getvalue()


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1, 0.8, 1), "faster"),
        ((1, 1.2, 1), "slower"),
        ((1, 1, 1), "same"),
        # Two starts of the same server differ as much.
        ((1, 0.9, 0.8), "inconclusive"),
        ((1, 0.97, 1.05), "inconclusive"),
        ((1, 1.03, 0.95), "inconclusive"),
        ((1, 1.025, 1.05), "inconclusive"),
        # They differ, and by less.
        ((1, 0.8, 1.05), "faster"),
    ],
)
def test_verdicts(factors: tuple[float, float, float], expected: str) -> None:
    assert said(arms(*factors)) == expected


def test_a_refused_gain_agrees_with_no_prediction() -> None:
    result = judge_tier(arms(1, 0.9, 0.8), 0.01, Limits(), "")
    doubt = result.doubt("tpot")
    assert doubt and doubt == result.metrics["tpot"].refused
    text = prediction(Predicted(2.0, None, "x"), result.metrics["tpot"], doubt)
    assert text == f"not comparable: {doubt}"


def test_a_gain_is_what_it_is() -> None:
    found = judge_tier(arms(1, 0.8, 1), 0.01, Limits(), "")
    tpot = found.metrics["tpot"]
    assert tpot.effect.value == pytest.approx(-0.2, abs=0.005)
    assert tpot.saved_low_ms is not None and tpot.saved_high_ms is not None
    assert 4 < tpot.saved_low_ms < tpot.saved_ms < tpot.saved_high_ms < 6.3
    assert found.metrics["ttft"].verdict == "same" and not found.difference


def changed(arm: str, change: Callable[[Answer], Answer], which: int = 3) -> dict[str, Answers]:
    found = arms(1, 0.8, 1)
    timed = list(found[arm].timed)
    timed[which] = change(timed[which])
    found[arm] = replace(found[arm], timed=tuple(timed))
    return found


def test_other_tokens_are_different() -> None:
    tokens = (*range(7), 99, *range(8, TOKENS))
    result = judge_tier(
        changed("candidate", lambda one: replace(one, tokens=tokens)), 0.01, Limits(), ""
    )
    assert result.difference == "request 4, output token 7: expected 7, found 99"
    assert {one.verdict for one in result.metrics.values()} == {"different"}


@pytest.mark.parametrize("factor", [0.8, 1, 1.2])
def test_where_vllm_itself_differs_nothing_is_said(factor: float) -> None:
    tokens = (*range(7), 99, *range(8, TOKENS))
    found = arms(1, factor, 1)
    other = replace(found["baseline_after"].timed[0], tokens=tokens)
    timed = (other, *found["baseline_after"].timed[1:])
    found["baseline_after"] = replace(found["baseline_after"], timed=timed)
    result = judge_tier(found, 0.01, Limits(), "")
    assert "output token 7" in result.unstable and not result.difference
    tpot = result.metrics["tpot"]
    assert tpot.verdict == "inconclusive" and "own two servers answer differently" in tpot.refused
    assert result.doubt("tpot") == result.unstable


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"tokens": tuple(range(TOKENS - 1))}, "request 4: expected 21 tokens, found 20"),
        ({"finish": "stop"}, "request 4: expected to end by length, found stop"),
        ({"text": "other"}, "request 4: the same tokens, another text"),
    ],
)
def test_differences(change: dict[str, object], where: str) -> None:
    found = changed("candidate", lambda one: replace(one, **change))  # type: ignore[arg-type]
    assert first_difference(found["baseline_before"], found["candidate"]) == where


def test_refusals_of_a_gain() -> None:
    assert said(arms(1, 0.8, 1)) == "faster"
    assert said(arms(1, 0.8, 1), unused="no plugin") == "inconclusive"
    slow = changed("candidate", lambda one: replace(one, ttft=0.3, latency=one.latency + 0.2))
    assert said(slow, Limits(ttft_ms=200)) == "inconclusive"
    assert said(slow, Limits(ttft_ms=400)) == "faster"
    right = {
        arm: replace(one, timed=tuple(replace(answer, expected="text") for answer in one.timed))
        for arm, one in arms(1, 0.8, 1).items()
    }
    assert said(right) == "faster"
    wrong = replace(right["candidate"].timed[0], expected="another")
    worse = replace(right["candidate"], timed=(wrong, *right["candidate"].timed[1:]))
    assert said(right | {"candidate": worse}) == "inconclusive"


def late(change: Callable[[Answer], Answer]) -> TierResult:
    """Of a faster candidate whose stream is changed."""
    found = arms(1, 0.8, 1)
    timed = tuple(change(one) for one in found["candidate"].timed)
    return judge_tier(found | {"candidate": Answers(answer(0.02), timed)}, 0.01, Limits(), "")


def test_tokens_that_come_together_with_the_first_are_not_counted() -> None:
    """Neither in one chunk nor in chunks of one instant: the others' time is theirs."""

    def change(one: Answer) -> Answer:
        tpot = one.tpot
        ttft = one.ttft + 5 * tpot  # 4 in the first chunk, and 2 at once after it
        assert replace(one, ttft=ttft).tpot < 0.8 * tpot
        itl, chunks = (1e-6,) * 2 + (tpot,) * 15, (4, *(1,) * 17)
        burst = replace(one, ttft=ttft - 2e-6, itl=itl, chunks=chunks)
        assert burst.tpot == pytest.approx(tpot) and burst.together == pytest.approx(5 / 20)
        return burst

    result = late(change)
    verdicts = {name: one.verdict for name, one in result.metrics.items()}
    assert verdicts == {
        **{"ttft": "inconclusive", "itl": "inconclusive", "tpot": "faster", "latency": "faster"}
    }
    assert result.metrics["tpot"].effect.value == pytest.approx(-0.2, abs=0.005)
    assert set(result.late) == {"ttft", "itl"}
    assert result.late["itl"].startswith("25 % of a server's tokens came together")


def test_why_a_stream_shows_nothing_is_said_with_few_requests_too() -> None:
    found = {
        arm: replace(answers, timed=answers.timed[:3]) for arm, answers in arms(1, 0.8, 1).items()
    }
    bunched = tuple(
        replace(one, itl=(one.tpot * 5,) * 4, chunks=(1, 5, 5, 5, 5))
        for one in found["candidate"].timed
    )
    found["candidate"] = replace(found["candidate"], timed=bunched)
    judged = judge_tier(found, 0.01, Limits(), "").metrics["itl"]
    assert judged.verdict == "inconclusive" and "came together" in judged.refused


def test_tokens_that_come_together_later_are_no_matter_for_tpot() -> None:
    result = late(lambda one: replace(one, itl=(one.tpot * 5,) * 4, chunks=(1, 5, 5, 5, 5)))
    assert set(result.late) == {"itl"} and result.metrics["itl"].verdict == "inconclusive"
    assert result.metrics["tpot"].verdict == "faster"


def test_answers_that_come_at_once_have_no_tpot() -> None:
    result = late(lambda one: replace(one, ttft=one.latency, itl=(), chunks=(TOKENS,)))
    assert "tpot" not in result.metrics and "100 %" in result.late["tpot"]
    assert result.metrics["latency"].verdict == "faster"
    text = shown(arms(1, 0.8, 1), result)
    assert "No verdict for TPOT: 100 % of a server's answers came" in text


def test_an_answer_of_one_token_has_no_tpot_and_is_not_late() -> None:
    found = arms(1, 0.8, 1)
    for arm, one in found.items():
        short = replace(answer(0.02), tokens=(0,), latency=0.1, itl=(), chunks=(1,))
        found[arm] = replace(one, timed=(*one.timed, short))
    result = judge_tier(found, 0.01, Limits(), "")
    assert result.metrics["tpot"].verdict == "faster" and not result.late
    assert result.metrics["tpot"].effect.rounds == 12


def test_limits_and_figures() -> None:
    one = answer(0.02)
    assert one.tpot == pytest.approx(0.02)
    assert Limits().met([one]) is None
    assert Limits(tpot_ms=19.9).met([one]) == 0 == Limits(ttft_ms=99).met([one])
    assert Limits(ttft_ms=100.1, tpot_ms=20.1).met([one, one]) == 2
    late = replace(one, chunks=(TOKENS - 1, 1), itl=(10.0,))
    assert math.isnan(late.tpot) and Limits(tpot_ms=20.1).met([one, late]) == 1
    single = replace(one, tokens=(1,), chunks=(1,), itl=())
    assert Limits(tpot_ms=20.1).met([single]) == 1
    assert tokens_per_s([one, one]) == pytest.approx(TOKENS / 0.5)
    assert percentiles_ms([0.001, 0.002, 0.003])[0] == pytest.approx(2)


def test_log_probabilities_are_compared_up_to_the_first_other_token() -> None:
    other = replace(
        answer(0.02),
        tokens=(0, 1, 2, 99, *range(4, TOKENS)),
        logprobs=(-1.0, -1.25, -1.0, -9.0, *(-1.0,) * (TOKENS - 4)),
    )
    one = Answers(answer(0.02), ())
    assert logprob_difference(one, Answers(other, ())) == 0.25
    assert logprob_difference(one, one) == 0
    assert logprob_difference(one, Answers(replace(other, logprobs=()), ())) == math.inf
    for few in ((), (-1.0,), (-1.0, math.nan) + (-1.0,) * (TOKENS - 2)):
        lacking = Answers(replace(answer(0.02), logprobs=few), ())
        assert logprob_difference(one, lacking) == logprob_difference(lacking, one) == math.inf
        assert logprob_difference(lacking, lacking) == math.inf
    another = Answers(replace(answer(0.02), tokens=tuple(range(1, TOKENS + 1))), ())
    assert logprob_difference(one, another) is None


@pytest.mark.parametrize(
    ("factor", "busy", "expected"),
    [
        (0.8, (0.1, 0.0, 0.1), "faster"),
        (0.8, (1.0, 1.0, 1.0), "faster"),
        # Beside both of vLLM's own more than beside the candidate: that could be the gain.
        (0.8, (1.0, 0.1, 0.9), "inconclusive"),
        (0.8, (1.0, 0.1, 0.2), "faster"),
        (0.8, (0.0, 1.0, 0.0), "faster"),
        (1.2, (0.0, 1.0, 0.0), "inconclusive"),
        (1.2, (1.0, 0.1, 0.9), "slower"),
        (1.0, (0.1, 0.1, 0.2), "same"),
        (1.0, (1.0, 0.1, 0.9), "inconclusive"),
        (1.0, (0.0, 1.0, 0.0), "inconclusive"),
    ],
)
def test_other_work_beside_one_server_is_no_difference(
    factor: float, busy: tuple[float, ...], expected: str
) -> None:
    found = arms(1, factor, 1)
    for arm, one in zip(ARMS, busy, strict=True):
        found[arm] = replace(found[arm], other_work=OtherWork(one, 2))
    result = judge_tier(found, 0.01, Limits(), "")
    tpot = result.metrics["tpot"]
    assert tpot.verdict == expected
    why = f"other work kept {busy[0]}, {busy[1]} and {busy[2]} of 2 processors busy"
    assert (why in tpot.refused) == (expected == "inconclusive")
    text = shown(found, result)
    assert ("of 2 processors busy meanwhile" in text) == (max(busy) > 0.2)


@pytest.mark.parametrize(
    ("candidate", "own", "noise", "expected"),
    [
        (-1.5, -1.0, 0.0, "inconclusive"),
        (-1.5, -1.25, 0.0, "faster"),
        (-1.5, -1.01, 0.0, "inconclusive"),
        # vLLM's own servers differ elsewhere.
        (-1.5, -1.0, 0.1, "faster"),
        (-1.5, -1.0, 0.01, "inconclusive"),
        (None, -1.0, 0.0, "inconclusive"),
        (None, -2.0, 0.0, "inconclusive"),
        (-1.5, None, 0.0, "inconclusive"),
        (-1.0, None, 0.0, "inconclusive"),
        (math.nan, -2.0, 0.0, "inconclusive"),
    ],
)
def test_a_gain_with_other_log_probabilities_is_none(
    candidate: float | None, own: float | None, noise: float, expected: str
) -> None:
    """A wrong slot can change them, and no token."""
    found = arms(1, 0.8, 1)
    for arm, value in (("candidate", candidate), ("baseline_after", own)):
        logprobs = () if value is None else (value,) * TOKENS
        warmup = replace(found[arm].warmup, logprobs=logprobs)
        found[arm] = replace(found[arm], warmup=warmup)
    quiet, noisy = arms(1, 0.8, 1), arms(1, 0.8, 1)
    warmup = replace(noisy["baseline_after"].warmup, logprobs=(-1.0 - noise,) * TOKENS)
    noisy["baseline_after"] = replace(noisy["baseline_after"], warmup=warmup)
    tiers = {arm: {"a": found[arm], "b": quiet[arm], "c": noisy[arm]} for arm in ARMS}
    result = judge_tiers(tiers, 0.01, Limits(), "")["a"]
    tpot = result.metrics["tpot"]
    assert tpot.verdict == expected
    assert ("log-probabilities differ" in tpot.refused) == (expected == "inconclusive")
    assert (": run again; if they differ again" in shown(found, result)) == (
        expected == "inconclusive"
    )
    assert "equal to the bit" not in shown(found, result)


def test_predictions() -> None:
    measured = judge_tier(arms(1, 0.8, 1), 0.01, Limits(), "").metrics["tpot"]
    for predicted, text in (
        (Predicted(measured.saved_ms, None, "x"), "agrees: the host's saving"),
        (Predicted(99, measured.saved_ms, "x"), "agrees: the engine's step"),
        (Predicted(99, None, "x"), "less than predicted: part of the saving is hidden"),
        (Predicted(0.1, None, "x"), "more than predicted"),
    ):
        assert prediction(predicted, measured).startswith(text)
    assert prediction(Predicted(1, None, "x"), measured, "late").startswith("not comparable: late")
    nothing = judge_tier(arms(1, 1, 1), 0.01, Limits(), "").metrics["tpot"]
    assert prediction(Predicted(0.001, None, "x"), nothing).startswith("neither confirmed")


def test_what_is_of_something_else_predicts_nothing() -> None:
    here = {"device_name": "card", "vllm_version": "1"}
    machine = "card", "1"
    engine = Predicted(0.6, 0.4, "x.csv, run 1", "hash", machine)
    assert engine.of("hash", "", here) == engine
    for model, arguments, words in (
        ("another", "", "of another model"),
        ("hash", "--enforce-eager", "without these --serve-args"),
    ):
        other = engine.of(model, arguments, here)
        assert (other.best, other.step_ms, other.doubt) == (0.6, None, "")
        assert other.where == f"x.csv, run 1; the step there is {words}"
    assert "does not name" in replace(engine, model="").of("hash", "", here).where
    component = replace(engine, step_ms=None, model="")
    assert component.of("hash", "--enforce-eager", here) == component
    elsewhere = component.of("hash", "", here | {"device_name": "another"})
    measured = judge_tier(arms(1, 0.8, 1), 0.01, Limits(), "").metrics["tpot"]
    assert prediction(elsewhere, measured) == "not comparable: it is of card and vLLM 1"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"candidate": "mine.py:attach"}, "is not of the fast path"),
        ({"candidate": OF_WORKTREE}, "is not of the fast path"),
        ({"equal": "False"}, "no saving with equal outputs"),
        ({"clock": "ready"}, "no row of the host's clock"),
    ],
)
def test_no_prediction(tmp_path: Path, change: dict[str, str], words: str) -> None:
    frame = pd.read_csv(RESULTS / "cpu-0.32.0.csv", dtype=str)
    path = tmp_path / "a.csv"
    for name, value in change.items():
        frame[name] = value
    if "equal" in change:
        timed = [c.name for c in COLUMNS if c.group == "result" and c.unit]
        frame[timed] = ""
        frame["verdict"] = "different"
    frame.to_csv(path, index=False)
    with pytest.raises(UsageError, match=words):
        predicted_by(path)


def test_a_remedy_is_for_what_it_can_help() -> None:
    found = arms(1, 0.8, 1)
    timed = [replace(one, expected="text") for one in found["candidate"].timed]
    timed[0] = replace(timed[0], expected="another")
    for arm in ARMS:
        exact = tuple(replace(one, expected="text") for one in found[arm].timed)
        found[arm] = replace(found[arm], timed=tuple(timed) if arm == "candidate" else exact)
    for arm in ARMS:
        scattered = [
            replace(one, ttft=0.1 * NOISE.uniform(0.5, 1.5), latency=one.latency)
            for one in found[arm].timed
        ]
        found[arm] = replace(found[arm], timed=tuple(scattered))
    result = judge_tier(found, 0.01, Limits(), "")
    assert result.metrics["ttft"].verdict == "inconclusive" and not result.metrics["ttft"].refused
    text = shown(found, result)
    assert "accuracy is worse: 11 requests instead of 12 and 12." in text
    assert "What to do for TTFT: give more --requests." in text


def test_the_step_is_of_the_same_run(tmp_path: Path) -> None:
    path = RESULTS / "engine-h200-0.26.0.csv"
    assert predicted_by(path).step_ms == pytest.approx(0.473, abs=0.001)
    frame = pd.read_csv(path, dtype=str)
    frame.loc[frame["clock"] == "step", "run"] = "another"
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert predicted_by(tmp_path / "a.csv").step_ms is None


@pytest.mark.parametrize(
    ("factors", "requests", "todo"),
    [
        ((1, 0.8, 1), 12, ""),
        ((1, 0.9, 0.8), 12, "What to do for TPOT: run again on a quieter machine."),
        ((1, 0.8, 1), 9, "What to do for TPOT: give more --requests, a verdict needs 10."),
    ],
)
def test_no_change_is_said_without_a_verdict(
    factors: tuple[float, float, float], requests: int, todo: str
) -> None:
    found = {arm: replace(one, timed=one.timed[:requests]) for arm, one in arms(*factors).items()}
    result = judge_tier(found, 0.01, Limits(), "")
    result = replace(result, metrics={"tpot": result.metrics["tpot"]})
    text = shown(found, result)
    assert ("TPOT changes by" in text and "saves" in text) == (not todo)
    assert ("TPOT is not shown to change: measured" in text) == bool(todo)
    assert todo in text and ("What to do" in text) == bool(todo)

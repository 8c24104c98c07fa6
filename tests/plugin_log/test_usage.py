"""From lines to what a service did: restarts, cut summaries, formats without processes."""

from __future__ import annotations

import io
import json
import logging
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_prep.fastpath.log_lines import CHECK_FAILED
from bench_prep.plugin_log.lines import marked_lines
from bench_prep.plugin_log.records import Line
from bench_prep.plugin_log.usage import Usage, usage_in
from tests.plugin_log.logs import OTHER, counts, line, reserved, summary

DISPATCHED = "fast path dispatched for the first time, at position 4"


def usage(*parts: bytes) -> Usage:
    found = usage_in(marked_lines(io.BytesIO(b"".join(parts)).read))
    assert found is not None
    return found


def shares(found: Usage) -> tuple[int, int, int]:
    return found.processes, found.dispatched, found.decode_steps


def test_the_last_summary_of_a_process_counts() -> None:
    found = usage(reserved(), line(DISPATCHED), summary(5, 9), OTHER, summary(70, 100))
    assert shares(found) == (1, 70, 100)
    assert found.fallbacks == {"several requests": 30}
    assert found.without_summary == 0


@pytest.mark.parametrize("kept", range(0, 200, 20))
def test_a_summary_that_was_cut_leaves_the_one_before(kept: int) -> None:
    last = line(json.dumps(counts(70, 100)))
    assert shares(usage(reserved(), summary(5, 9), last[: -1 - kept - 1])) == (1, 5, 9)


def test_processes_are_added_up() -> None:
    found = usage(
        reserved(pid=1), reserved(pid=2), summary(5, 9, pid=1), summary(6, 6, pid=2, checked=3)
    )
    assert shares(found) == (2, 11, 15)
    assert found.checked == 3


def test_a_restart_with_the_same_identifier() -> None:
    """As in a container, where the first processes always have the same ones."""
    found = usage(reserved(), summary(5, 9), reserved(), summary(50, 90))
    assert shares(found) == (2, 55, 99)


def test_a_restart_is_seen_from_the_counters_too() -> None:
    assert shares(usage(summary(50, 90), summary(5, 9), summary(6, 10))) == (2, 56, 100)


def test_a_line_written_twice_is_one_process() -> None:
    """Two log handlers, or a log that was merged from two sources."""
    found = usage(reserved(), reserved(), line(DISPATCHED), line(DISPATCHED), *[summary(5, 9)] * 2)
    assert shares(found) == (1, 5, 9)


def test_a_log_that_names_no_process() -> None:
    def one(process: int, closed: str | None) -> list[Line]:
        record = counts(5, 9, pid=process, closed=closed)
        texts = ["fast path reserved: it", DISPATCHED, "summary: 5 of 9", json.dumps(record)]
        if closed:
            texts.insert(-1, f"fast path closed for this process: {closed}")
        return [Line(None, text) for text in (*texts, texts[-1])]

    found = usage_in([*one(15, None), *one(15, "OSError: no"), *one(16, None)])
    assert found is not None
    assert shares(found) == (3, 15, 27)
    assert found.without_summary == 0
    assert found.failures == {"OSError: no": 1}


def unnamed(pid: int, steps: int) -> Line:
    return Line(None, json.dumps(counts(steps, steps, pid=pid)))


START = Line(None, "fast path reserved: it")


def test_a_start_among_several_processes_that_are_not_named() -> None:
    """The third begins while the others go on; then all begin anew, with the same identifiers."""
    both = [START, START, unnamed(15, 100), unnamed(16, 200)]
    third = [START, unnamed(15, 110), unnamed(16, 220), unnamed(17, 30)]
    anew = [START, START, START, unnamed(15, 1), unnamed(16, 2), unnamed(17, 3)]
    for lines, expected in (
        (both + third, (3, 360, 360)),
        (both + third + anew, (6, 366, 366)),
    ):
        found = usage_in(lines)
        assert found is not None and not found.mixed
        assert shares(found) == expected
    found = usage_in([*both, START, unnamed(15, 110), unnamed(16, 220)])
    assert found is not None and found.mixed  # it may be of 15 or 16, begun anew


def test_a_difference_and_a_failure_are_told_apart() -> None:
    closed = "fast path closed for this process, vLLM's own path goes on: "
    found = usage(
        reserved(pid=1),
        line(f"{closed}{CHECK_FAILED}: seq_lens[0]: expected 5, found 6", pid=1),
        reserved(pid=2),
        line(f"{closed}OSError: no", pid=2),
    )
    assert found.differences == {f"{CHECK_FAILED}: seq_lens[0]: expected 5, found 6": 1}
    assert found.failures == {"OSError: no": 1}


def test_a_closed_process_is_known_from_its_summary() -> None:
    found = usage(summary(5, 9, closed=f"{CHECK_FAILED}: x"))
    assert found.differences == {f"{CHECK_FAILED}: x": 1}


def test_the_last_start_decides_whether_it_is_used() -> None:
    off = line("fast path not used: turned off by BENCH_PREP_FASTPATH", pid=16)
    assert usage(reserved(), off).not_used == "turned off by BENCH_PREP_FASTPATH"
    assert usage(off, reserved()).not_used is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "something else",
        "[]",
        '{"event": "summary"}',
        json.dumps(counts(1, 2, steps="many")),
        json.dumps(counts(1, 2, decode_fallbacks=["several requests"])),
        json.dumps(counts(1, 2, decode_fallbacks={"several requests": "one"})),
        json.dumps(counts(1, 2, event="other")),
        "[" * 15_000,
    ],
)
def test_what_the_plugin_never_writes(text: str) -> None:
    found = usage_in([Line(15, text)])
    assert found is not None and (found.unread, found.processes) == (1, 0)


@given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b"[bench-prep] ", b'{"a": "', b'{"a":' * 3000, b"\n", b'"}']),
            st.sampled_from([reserved(), summary(2, 3), b"(W pid=" + b"9" * 5000 + b") "]),
        ),
        max_size=20,
    )
)
def test_no_log_makes_it_fail(parts: list[bytes]) -> None:
    found = usage_in(marked_lines(io.BytesIO(b"".join(parts)).read))
    assert found is None or found.dispatched <= found.decode_steps


class TestAsWritten:
    """What `fastpath.events` writes is what is read."""

    @pytest.fixture
    def read(self, caplog: pytest.LogCaptureFixture):  # type: ignore[no-untyped-def]
        pytest.importorskip("torch")
        caplog.set_level(logging.INFO, "vllm.bench_prep")
        logging.getLogger("vllm.bench_prep").addHandler(caplog.handler)
        yield lambda: usage_in(marked_lines(io.BytesIO("\n".join(caplog.messages).encode()).read))
        logging.getLogger("vllm.bench_prep").removeHandler(caplog.handler)

    def test_a_service_that_is_closed(self, read, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        from bench_prep.fastpath import events

        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
        runner = SimpleNamespace(
            model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=["A", "B"])),
            input_batch=SimpleNamespace(block_table=SimpleNamespace(block_tables=[0, 0])),
            device="cpu",
        )
        events.reserved(runner, 5, 0.02)
        events.first_dispatch(4)
        events.closed_for_good(f"{CHECK_FAILED}: x")
        events.summary(counts(70, 100, checked=14, closed=f"{CHECK_FAILED}: x"))
        found = read()
        assert "vLLM 0.32.0, A, B on cpu, KV groups: 2, every 5th step is checked" in found.reserved
        assert shares(found) == (1, 70, 100)
        assert (found.first_dispatch, found.checked) == (True, 14)
        assert found.differences == {f"{CHECK_FAILED}: x": 1}

    def test_a_service_that_does_not_use_it(self, read) -> None:  # type: ignore[no-untyped-def]
        from bench_prep.fastpath import events

        for write, reason in (
            (lambda: events.closed("LoRA: why"), "LoRA: why"),
            (lambda: events.off("SWITCH"), "turned off by SWITCH"),
            (lambda: events.failed(OSError("a\nb")), "its set-up failed (OSError: a)"),
        ):
            write()
            assert read().not_used == reason

"""Finding the plugin's lines: any chunk, any wrapping, nothing that only quotes them."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_prep.plugin_log.lines import CHUNK, LONGEST, marked_lines
from bench_prep.plugin_log.records import Line
from tests.plugin_log.logs import OTHER, line, reserved, summary

RESERVED = Line(15, "fast path reserved: vLLM 0.32.0, KV groups: 1")


def found(log: bytes) -> list[Line]:
    return said(marked_lines(io.BytesIO(log).read))


def said(lines: Iterable[Line]) -> list[Line]:
    """Who said what; without the marks that are quoted or cannot be read."""
    return [Line(line.pid, line.text) for line in lines if line.text]


@given(
    parts=st.lists(
        st.sampled_from(
            [OTHER, reserved(), summary(2, 3), b"x" * 300, b"\n", b"[bench-prep", b"\xff\r\n"]
        ),
        max_size=12,
    ),
    size=st.integers(1, 400),
)
def test_chunks_make_no_difference(parts: list[bytes], size: int) -> None:
    log = b"".join(parts)
    stream = io.BytesIO(log)
    assert said(marked_lines(lambda _: stream.read(size))) == found(log)


def test_every_line_is_found_with_its_process() -> None:
    log = OTHER + reserved() + OTHER + line("fast path not used: LoRA", pid=16) + OTHER
    assert found(log) == [RESERVED, Line(16, "fast path not used: LoRA")]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text + "\n",
        lambda text: text + "\r\n",
        lambda text: text,
        lambda text: json.dumps({"log": text + "\n", "stream": "stdout"}) + "\n",
        lambda text: json.dumps({"log": json.dumps({"message": text, "level": "INFO"})}) + "\n",
        lambda text: json.dumps({"kubernetes": {"pod": "a"}, "record": {"message": text}}) + "\n",
        lambda text: "2026-11-30T10:38:48.1Z stdout F " + text + "\n",
        lambda text: "Nov 30 10:38:48 host vllm[812]: " + text + "\n",
        lambda text: "vllm-1  | \x1b[0;36m" + text.replace(") ", ")\x1b[0;0m ") + "\x1b[0m\n",
        lambda text: "Loading: 10%\rLoading: 20%\r" + text + "\n",
    ],
    ids=["plain", "CRLF", "no end", "Docker", "twice", "nested", "CRI", "syslog", "colour", "bar"],
)
def test_whatever_wraps_a_line(wrap) -> None:  # type: ignore[no-untyped-def]
    text = reserved().decode().rstrip()
    assert found(OTHER + wrap(text).encode()) == [RESERVED]


def test_colours_and_json_of_vllm_itself() -> None:
    colour = (
        "\x1b[0;36m(Worker pid=15)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-30 10:38:48\x1b[0m "
        "\x1b[90m[events.py:25]\x1b[0m [bench-prep] " + RESERVED.text
    )
    as_json = json.dumps({"process": 15, "message": f"[bench-prep] {RESERVED.text}"})
    assert found(f"{colour}\n{as_json}\n".encode()) == [RESERVED, RESERVED]


@pytest.mark.parametrize("gap", [0, 2 * LONGEST], ids=["short", "long"])
def test_a_log_quoted_in_a_prompt_is_not_read(gap: int) -> None:
    prompt = reserved().decode().rstrip() + r"\n" + "x" * gap + reserved().decode().rstrip()
    request = f"(APIServer pid=7) DEBUG 11-30 10:38:48 [logger.py:45] prompt: '{prompt}'\n"
    assert found(request.encode() + line("fast path not used: LoRA")) == [
        Line(15, "fast path not used: LoRA")
    ]


def test_a_line_that_was_cut_is_continued_by_the_next_process() -> None:
    log = summary(2, 3)[:-40] + reserved(pid=16)
    assert [each.pid for each in found(log)] == [15, 15, 16]
    assert found(log)[2].text == RESERVED.text


def test_lines_without_end_take_no_memory() -> None:
    rest = 64

    def read(_: int) -> bytes:
        nonlocal rest
        rest -= 1
        return b"[" * CHUNK if rest > 0 else b""

    tracemalloc.start()
    try:
        assert list(marked_lines(read)) == []
        assert tracemalloc.get_traced_memory()[1] < 8 * CHUNK
    finally:
        tracemalloc.stop()


def test_a_mark_far_behind_the_beginning_of_its_line() -> None:
    """Nothing that writes our lines puts so much before them."""
    assert found(b"x " * LONGEST + reserved()) == []
    assert found(b"x " * LONGEST + b"\n" + reserved()) == [RESERVED]


def test_a_text_without_end_is_cut() -> None:
    log = line("fast path closed: " + "x" * 3 * CHUNK)[:-1] + OTHER + reserved()
    closed, last = found(log)
    assert len(closed.text) < LONGEST
    assert last == RESERVED

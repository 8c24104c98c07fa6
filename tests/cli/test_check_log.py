"""`check-log` on logs of real `vllm serve` processes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin_log.logs import KEPT, OTHER, line, reserved, summary

from .conftest import Bench

DISPATCHED = line("fast path dispatched for the first time, at position 4")


@pytest.fixture
def log(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(*parts: bytes) -> Path:
        file = tmp_path / "service.log"
        file.write_bytes(OTHER + b"".join(parts) + OTHER)
        return file

    return write


class TestRealServices:
    def test_one_request_at_a_time_and_two(self, bench: Bench) -> None:
        done = bench("check-log", KEPT / "mixed.log", "--min-share", "60")
        assert (done.code, done.err) == (0, "")
        assert "vLLM 0.32.0, Qwen2ForCausalLM on cpu" in done.out
        assert "198 of 297 decode steps (66.7 %)" in done.out
        assert "99 several requests" in done.out
        assert "39 steps, equal" in done.out

    def test_below_the_share(self, bench: Bench) -> None:
        done = bench("check-log", KEPT / "mixed.log", "--min-share", "66.7")
        done.refused(4, "66.7 % of the decode steps, less than 66.7 %")
        assert "several requests" in done.err

    def test_turned_off(self, bench: Bench) -> None:
        bench("check-log", KEPT / "off.log").refused(6, "turned off by BENCH_PREP_FASTPATH")

    def test_a_planted_fault(self, bench: Bench) -> None:
        done = bench("check-log", KEPT / "fault.log")
        done.refused(3, "a step differs from vLLM's own path", "slot_mapping")

    def test_json_log_of_a_service_ended_under_load(self, bench: Bench) -> None:
        done = bench("check-log", "--json", KEPT / "json.log")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        assert found["share_pct"] == 100
        assert found["dispatched_steps"] > 100
        assert found["processes"] == 1

    def test_all_as_one_rotated_log(self, bench: Bench) -> None:
        files = [KEPT / name for name in ("fault.log", "json.log", "mixed.log", "off.log")]
        found = json.loads(bench("check-log", "--json", *files).out)
        assert found["processes"] == 3


class TestExitCodes:
    def test_given_up(self, bench: Bench, log) -> None:  # type: ignore[no-untyped-def]
        file = log(reserved(), summary(5, 9, closed="OSError: no"))
        bench("check-log", file).refused(4, "given up: OSError: no")

    def test_no_summary_yet(self, bench: Bench, log) -> None:  # type: ignore[no-untyped-def]
        bench("check-log", log(reserved())).refused(4, "reserved, but no decode step is counted")
        bench("check-log", log(reserved(), DISPATCHED)).refused(4, "dispatched, but no decode step")

    def test_never_dispatched(self, bench: Bench, log) -> None:  # type: ignore[no-untyped-def]
        file = log(reserved(), summary(0, 9))
        bench("check-log", file).refused(4, "no decode step was dispatched: several requests")

    def test_a_difference_outweighs_all_else(self, bench: Bench, log) -> None:  # type: ignore[no-untyped-def]
        closed = "a step differs from vLLM's own path: seq_lens[0]: expected 5, found 6"
        file = log(reserved(), summary(5, 9, closed=closed), line("fast path not used: LoRA: x"))
        bench("check-log", file).refused(3, "seq_lens[0]: expected 5, found 6")

    def test_no_line_of_the_plugin(self, bench: Bench, log) -> None:  # type: ignore[no-untyped-def]
        done = bench("check-log", log())
        done.refused(6, "no line of bench-prep")
        assert "VLLM_PLUGINS" in done.err
        found = json.loads(bench("check-log", "--json", log()).out)
        assert (found["exit_code"], found["reserved"]) == (6, False)

    @pytest.mark.parametrize("arguments", [["none.log"], ["."], [], ["x", "--min-share", "101"]])
    def test_wrong_usage(self, bench: Bench, arguments: list[str]) -> None:
        bench("check-log", *arguments).refused(2)

    @pytest.mark.parametrize("file", ["none.log", KEPT / "utf16.log"])
    def test_json_of_what_cannot_be_read(self, bench: Bench, file: Path | str) -> None:
        done = bench("check-log", "--json", file)
        found = json.loads(done.out)
        assert (done.code, found["exit_code"], found["decode_steps"]) == (2, 2, 0)
        assert str(found["problem"]) in done.err

    def test_a_mark_that_cannot_be_read(self, bench: Bench, log) -> None:  # type: ignore[no-untyped-def]
        bench("check-log", log(b"<b>[bench-prep]</b> x\n")).refused(2, "1 lines with [bench-prep]")
        cut = line('{"event": "summary", "pid": 15, "st')
        bench("check-log", log(reserved(), cut)).refused(2, "1 lines with [bench-prep]")
        done = bench("check-log", log(reserved(), summary(7, 7), cut))
        assert (done.code, "1 lines with [bench-prep]" in done.out) == (0, True)

    def test_replicas_that_nothing_tells_apart(self, bench: Bench, log) -> None:  # type: ignore[no-untyped-def]
        both = [summary(at, at) + summary(at // 2, at // 2) for at in (100, 200, 300)]
        file = log(reserved(), reserved(), *both)
        bench("check-log", file).refused(2, "does not tell apart")
        found = json.loads(bench("check-log", "--json", file).out)
        assert (found["exit_code"], found["decode_steps"], found["share_pct"]) == (2, 0, None)

    def test_binary(self, bench: Bench) -> None:
        bench("check-log", sys.executable).refused(2, "binary")


def test_stdin(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench_prep", "check-log", "-"],
        input=reserved() + summary(7, 7),
        env=environment,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"7 of 7 decode steps (100.0 %)" in done.stdout

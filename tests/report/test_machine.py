"""The machine's state in a row, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench_prep.errors import Inconclusive
from bench_prep.measure.device_state import DeviceState
from bench_prep.measure.records import ARMS, Block, Round
from bench_prep.measure.state import MachineState, Span, read_state
from bench_prep.report.machine import (
    clock_share,
    machine_warnings,
    state_notes,
    state_rows,
)
from bench_prep.results.contradictions import contradiction
from bench_prep.results.machine import machine_cells
from bench_prep.results.row import Row
from bench_prep.results.rows import Measured, rows
from bench_prep.settings import RunSettings
from tests.report.shown import report_markdown
from tests.results.frames import append, frame_of, load, rows_of, write_steps

MakeFrame = Callable[..., pd.DataFrame]

BEFORE = MachineState(at_s=1.0, read_s=0.0015, processors=8, affinity=(0, 1, 2, 5), threads=2)
AFTER = replace(BEFORE, at_s=2.0, load=0.5, slowed_by=("a; b", "c"), omp_num_threads="2")


def timed(left_out: str = "") -> Round:
    one, two, three = (Block(arm, {"host": [1]}) for arm in ARMS)
    return Round((one, two, three), left_out)


def row(rounds: list[Round], spans: list[Span], **cells: Any) -> Row:
    return Row(**machine_cells(rounds, spans) | cells)


def which(flags: Iterable[bool]) -> str:
    flags = list(flags)
    return "" if all(flags) else f" ({flags.index(True)})"


def test_left_out_rounds_are_counted_by_reason() -> None:
    rounds = [timed("hot"), timed(), timed("compiled in candidate; hot"), timed()]
    cells = machine_cells(rounds, [])
    assert cells == {"left_out_because": "hot (2 rounds); compiled in candidate (1 round)"}
    assert machine_cells([timed()], []) == {"left_out_because": ""}


def test_one_text_has_all_doubts_each_with_its_remedy() -> None:
    cells = machine_cells([timed()], [Span(BEFORE, AFTER)])
    assert cells["doubts"] == (
        "the timing process was slowed by a, b (run without it); "
        "the timing process was slowed by c (run without it)"
    )
    assert cells["unknown_state"].split("; ")[:2] == ["frequency governor", "load"]


def test_the_state_is_shown_before_and_after() -> None:
    assert state_rows(row([timed()], [Span(BEFORE, BEFORE), Span(AFTER, AFTER)])) == (
        ("load, mean of a minute", "unknown", "0.50"),
        ("processors allowed", "numbers 0-2,5, of 8", "numbers 0-2,5, of 8"),
        ("frequency governor", "unknown", "unknown"),
        ("torch's threads", "2", "2"),
        ("OMP_NUM_THREADS", "not set", "2"),
        ("interpreter slowed by", "nothing", "a; b, c"),
        ("reading this state took", "1.50 ms", "1.50 ms"),
    )


def test_a_device_is_shown_and_what_it_does_not_tell_is_unknown() -> None:
    hot = DeviceState(clock_mhz=1980, temperature_c=70, power_w=300.5, reasons=("power brake",))
    one, other = (replace(BEFORE, device=device) for device in (DeviceState(), hot))
    shown = {name: (a, b) for name, a, b in state_rows(row([timed()], [Span(one, other)]))}
    assert shown["device clock"] == ("unknown", "1980 MHz")
    assert shown["device temperature"] == ("unknown", "70 °C")
    assert shown["device power"] == ("unknown of unknown", "300.5 of unknown")
    assert shown["device clock held back by"] == ("unknown", "power brake")
    assert shown["other processes on the device"] == ("unknown", "unknown")


def test_this_machine_is_shown() -> None:
    found = row([timed()], [Span(read_state(), read_state())])
    assert len(state_rows(found)) == 7
    assert "\n" not in found.machine_state


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"before": 1, "after": 2}', "[]"])
def test_a_state_that_cannot_be_read_is_not_shown(text: str) -> None:
    assert state_rows(row([timed()], [], machine_state=text)) == ()


def test_nothing_doubtful_is_said_only_of_what_could_be_read() -> None:
    quiet = row([timed()], [Span(BEFORE, BEFORE)])
    notes = state_notes(quiet)
    assert "Nothing doubtful was found in what could be read." in notes
    assert notes[-1].startswith("Unknown on this machine: frequency governor, load, ")
    doubtful = row([timed()], [Span(AFTER, AFTER)])
    assert not any("Nothing doubtful" in note for note in state_notes(doubtful))
    assert state_notes(row([timed()], [])) == ()


def test_each_doubt_is_one_warning_with_its_rows() -> None:
    rows = [
        row([timed()], [Span(BEFORE, BEFORE)]),
        row([timed("loud in candidate"), timed()], [Span(AFTER, AFTER)]),
    ]
    assert machine_warnings(rows, which) == [
        "Left out and not counted, whatever their times: loud in candidate (1 round) (1).",
        "Doubtful: the timing process was slowed by a, b (run without it) (1).",
        "Doubtful: the timing process was slowed by c (run without it) (1).",
        "What to do about left-out rounds: raise --warmup, so that it happens before the timing; "
        "what still happens then is a cost of the arm itself.",
    ]


@pytest.mark.parametrize(("cost", "share"), [(None, 0.0), (5, 0.005), (20, 0.02)])
def test_the_clock_is_mentioned_where_it_costs_more_than_a_small_share(
    cost: Any, share: float
) -> None:
    times = {
        "clock": "host",
        "baseline_ms": 0.01,
        "candidate_ms": 0.001,
        "clock_cost_ns": cost,
        "preempted_pct": 0.4,
    }
    one = row([timed()], [], **times)
    assert clock_share(one) == pytest.approx(share)
    said = machine_warnings([one], which)
    assert said == (
        ["The clock alone takes 20 ns of each time, 2.0 % of the shorter one."]
        if share > 0.01
        else []
    )


class TestRows:
    """All of it on the way through a file."""

    @pytest.fixture
    def frame(self, make_round: Callable[..., Round]) -> MakeFrame:
        """Makes the rows of so many rounds that count, and so many that do not."""

        def make(counted: int, left_out: int, why: str = "hot; loud") -> pd.DataFrame:
            left = replace(make_round(), left_out=why)
            rounds = [make_round()] * counted + [left] * left_out
            measured = Measured(
                RunSettings(),
                rounds,
                {},
                "run",
                "2025-01-01T00:00:00Z",
                spans=[Span(BEFORE, AFTER)] * len(rounds),
                clock_cost={"host": 70, "ready": 5000},
                floor={"host": 3000, "ready": 10000},
            )
            return frame_of(rows(measured))

        return make

    def test_they_come_back_from_the_file(self, frame: MakeFrame, tmp_path: Path) -> None:
        append(tmp_path / "a.csv", frame(10, 2))
        loaded = load(tmp_path / "a.csv")
        first = loaded.iloc[0]
        assert list(loaded["clock_cost_ns"]) == [70, 5000]
        assert list(loaded["floor_ns"]) == [3000, 10000]
        assert (first["rounds"], first["rounds_left_out"]) == (10, 2)
        assert first["left_out_because"] == "hot (2 rounds); loud (2 rounds)"
        assert len(state_rows(rows_of(loaded)[0])) == 7
        text = report_markdown([loaded])
        assert "floor = one launch of a tiny kernel" in text and "0.010000 ms" in text
        assert "Machine while it timed" in text
        assert "Left out and not counted, whatever their times: loud (2 rounds)." in text
        assert "Doubtful: the timing process was slowed by c (run without it)." in text
        assert "5000 ns of each time, 4.9 % of the shorter one (ready)." in text

    def test_steps_of_left_out_rounds_are_marked(
        self, make_round: Callable[..., Round], tmp_path: Path
    ) -> None:
        both = [make_round(), replace(make_round(), left_out="hot")]
        write_steps(tmp_path / "steps.csv.gz", both)
        steps = pd.read_csv(tmp_path / "steps.csv.gz", keep_default_na=False)
        assert list(steps.groupby("round")["left_out"].unique().map(list)) == [[""], ["hot"]]
        write_steps(tmp_path / "steps.csv.gz", both[:1])
        assert "left_out" not in pd.read_csv(tmp_path / "steps.csv.gz")

    @pytest.mark.parametrize(("left_out", "verdict"), [(10, "faster"), (11, "inconclusive")])
    def test_where_most_rounds_are_left_out_nothing_is_settled(
        self, frame: MakeFrame, left_out: int, verdict: str
    ) -> None:
        made = frame(10, left_out)
        assert set(made["verdict"]) == {verdict}
        assert contradiction(vars(rows_of(made)[0])) is None
        said = "11 rounds were left out, more than the 10 rounds counted"
        assert (said in report_markdown([made])) == (verdict == "inconclusive")

    def test_left_out_rounds_alone_are_no_result(self, frame: MakeFrame) -> None:
        with pytest.raises(Inconclusive, match=r"all 3 rounds were disturbed and left out, .* hot"):
            frame(0, 3)
        with pytest.raises(Inconclusive) as raised:
            frame(0, 3, "most steps were preempted in candidate")
        assert "taskset -c NUMBERS" in raised.value.remedy


@pytest.mark.parametrize(("share", "said"), [(None, 0), (0.9, 0), (12.3, 1)])
def test_preempted_steps_are_mentioned(share: float, said: int) -> None:
    one = row([timed()], [], clock="host", preempted_pct=share)
    found = machine_warnings([one], which)
    assert len(found) == said
    assert all(text.startswith("In 12 % of the timed steps other programs") for text in found)
    assert all("taskset -c NUMBERS" in text for text in found)


def test_preempted_rounds_come_with_what_to_do() -> None:
    why = "most steps were preempted in candidate"
    found = machine_warnings([row([timed(), timed(why)], [], clock="host")], which)
    assert [text.partition(":")[0] for text in found] == [
        "Left out and not counted, whatever their times",
        "What to do about preempted rounds",
    ]
    assert "taskset -c NUMBERS" in found[1] and "--warmup" not in " ".join(found)

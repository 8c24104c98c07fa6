"""Rounds become rows with the promised columns and values."""

from __future__ import annotations

import pandas as pd
import pytest

from bench_prep.measure.records import Block, Round
from bench_prep.results.row import COLUMNS, ENVIRONMENT, NAMES, environment_record
from bench_prep.results.rows import Measured, rows
from bench_prep.settings import RunSettings

FOR_GOOD = (
    "schema",
    "clock",
    "position",
    "block_sizes",
    "iters",
    "rounds",
    "baseline_before_ms",
    "candidate_ms",
    "baseline_after_ms",
    "baseline_ms",
    "drift_pct",
    "speedup",
    "saved_ms",
    "reduction_pct",
    "equal",
    "verdict",
)


def test_names_that_are_kept_for_good() -> None:
    assert [name for name in FOR_GOOD if name not in NAMES] == []
    assert len(set(NAMES)) == len(COLUMNS)


def test_every_column_has_a_meaning_and_every_time_its_unit_in_its_name() -> None:
    for column in COLUMNS:
        assert column.meaning
        assert (column.unit == "ms") == column.name.endswith("_ms"), column.name
        assert (column.unit == "%") == column.name.endswith("_pct"), column.name


def test_one_row_per_clock_in_order(make_frame, make_round) -> None:
    rounds = [make_round(clocks=("device", "ready", "host"))]
    frame = make_frame(rounds=rounds)
    assert list(frame["clock"]) == ["host", "ready", "device"]
    assert list(frame.columns) == list(NAMES)
    assert set(frame["run"]) == {"run-1"}


def test_values_of_one_round(make_frame) -> None:
    row = make_frame(tpot_ms=45, block_sizes="16,32").iloc[0]
    assert row["baseline_before_ms"] == 0.259076
    assert row["candidate_p5_ms"] == pytest.approx(0.101048 - 45 * 10e-6)
    assert row["candidate_p95_ms"] == pytest.approx(0.101048 + 45 * 10e-6)
    assert row["baseline_after_p99_ms"] == pytest.approx(0.258436 + 49 * 10e-6)
    assert row["saved_ms"] == pytest.approx(0.157388)
    assert row["speedup"] == pytest.approx(2.557557, abs=1e-6)
    assert row["share_of_tpot_pct"] == pytest.approx(100 * 0.157388 / 45)
    assert row["block_sizes"] == "16,32"
    assert row["effect_pct"] == pytest.approx(100 * (0.101048 / (0.259076 * 0.258436) ** 0.5 - 1))
    assert row["verdict"] == "inconclusive", "one round settles nothing"
    assert (row["rounds"], row["rounds_left_out"], row["iters"]) == (1, 0, 101)
    assert pd.isna(row["effect_low_pct"])
    assert pd.isna(row["speedup_low"])


def test_seven_rounds_have_intervals(make_frame, make_round) -> None:
    rounds = [make_round((200_000, 100_000 + 1000 * n, 200_000)) for n in range(7)]
    row = make_frame(rounds=rounds).iloc[0]
    assert row["rounds"] == 7
    assert row["candidate_ms"] == 0.103
    assert (row["saved_low_ms"], row["saved_ms"], row["saved_high_ms"]) == (0.094, 0.097, 0.1)
    assert row["speedup_low"] == pytest.approx(200 / 106)
    assert row["speedup_high"] == 2
    assert row["reduction_low_pct"] == pytest.approx(47)


def test_partial_run_counts_the_finished_rounds(make_frame, make_round) -> None:
    frame = make_frame(rounds=[make_round()] * 2, partial=True)
    assert list(frame["rounds"]) == [2, 2]
    assert all(frame["partial"])


def test_different_outputs_have_no_times(make_frame) -> None:
    frame = make_frame(equal=False)
    assert set(frame["verdict"]) == {"different"}
    for column in COLUMNS:
        if column.group == "result" and column.kind == "float":
            assert frame[column.name].isna().all(), column.name


def test_no_rounds() -> None:
    with pytest.raises(ValueError, match="no finished round"):
        rows(Measured(RunSettings(), [], {}, "", ""))


def test_blocks_with_different_clocks(make_frame, make_round) -> None:
    one = make_round()
    lame = Block("candidate", {"host": one.blocks[1].samples["host"]})
    with pytest.raises(ValueError, match="same clocks"):
        make_frame(rounds=[Round((one.blocks[0], lame, one.blocks[2]))])


def test_environment_keys() -> None:
    assert environment_record(dict.fromkeys(column.name for column in ENVIRONMENT)) == {}
    with pytest.raises(ValueError, match="hostname"):
        environment_record({"hostname": "x"})
    with pytest.raises(ValueError, match="equality_steps"):
        environment_record({"equality_steps": "many"})
    assert environment_record({"command": "a\nb"})["command"] == "a b"

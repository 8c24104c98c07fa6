"""The CSV of a sweep: what is written is what is read, and nothing else is believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench_prep.errors import UsageError
from bench_prep.sweep.axes import AXES, points_of
from bench_prep.sweep.laps import ARMS
from bench_prep.sweep.store import TABLE, load, rows
from tests.sweep.synthetic import MARGIN, REFERENCE, cost, frame_of, one_round


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return frame_of()


@pytest.fixture
def path(tmp_path: Path, frame: pd.DataFrame) -> Path:
    path = tmp_path / "sweep.csv"
    TABLE.append(path, frame.to_dict("records"))
    return path


def test_a_row_per_point_arm_and_clock(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == TABLE.names
    assert len(frame) == len(AXES) * 3 * 2 * 2
    keys = ["axis", "value", "arm", "clock"]
    assert not frame.duplicated(keys).any()
    assert list(dict.fromkeys(frame["axis"])) == list(AXES)
    one = frame[(frame["axis"] == "groups") & (frame["value"] == 4) & (frame["clock"] == "ready")]
    times = dict(zip(one["arm"], one["time_us"], strict=True))
    assert times == pytest.approx({"baseline": 180, "candidate": 2.8}, rel=0.05)
    assert (one["block_sizes"] == "16,16,16,16").all() and (one["laps"] == 16).all()
    assert (one["speedup"] > 50).all() and set(one["verdict"]) == {"faster"}
    for name in ("vllm_version", "fastpath_sha256", "device_name", "command", "run", "started"):
        assert (frame[name] != "").all()


def test_growth_is_that_of_the_truth(frame: pd.DataFrame) -> None:
    for arm, slope in (("baseline", 420 / 120), ("candidate", 5200 / 2200)):
        rows_of_arm = frame[(frame["arm"] == arm) & (frame["clock"] == "ready")]
        for axis, of_axis in rows_of_arm.groupby("axis"):
            found = of_axis.iloc[0]
            if axis == "groups":
                assert found["growth"] == "grows" and (found["fastest"], found["slowest"]) == (
                    1,
                    16,
                )
                assert found["ratio_low"] <= slope <= found["ratio_high"]
            else:
                assert found["growth"] == "flat" and found["within_pct"] <= 100 * MARGIN


def test_what_is_read_is_what_was_written(path: Path, frame: pd.DataFrame) -> None:
    read = load(path)
    for name in TABLE.names:
        pairs = zip(read[name], frame[name], strict=True)
        assert all(pd.isna(a) if pd.isna(b) else a == b for a, b in pairs), name


def test_the_last_run_or_the_named_one(path: Path, frame: pd.DataFrame) -> None:
    TABLE.append(path, (frame.assign(run="r2", seed=4)).to_dict("records"))
    assert set(load(path)["run"]) == {"r2"} and set(load(path, "r1")["seed"]) == {3}
    with pytest.raises(UsageError, match="has no run r3") as error:
        load(path, "r3")
    assert error.value.remedy == "runs: r1, r2"


def test_points_that_were_left_out_are_there(tmp_path: Path) -> None:
    gone = points_of(("groups",), 3, REFERENCE)[2]
    frame = frame_of(("groups",), left_out={gone: "no memory\nfor it"})
    (row,) = frame[frame["arm"] == ""].to_dict("records")
    assert (row["value"], row["left_out"]) == (16, "no memory for it")
    assert pd.isna(row["time_us"])
    assert row["block_sizes"] == ",".join(["16"] * 16)
    TABLE.append(tmp_path / "sweep.csv", frame.to_dict("records"))
    read = load(tmp_path / "sweep.csv")
    assert set(read[read["arm"] != ""]["slowest"]) == {4}


def test_an_interrupted_lap_and_a_lap_that_does_not_count() -> None:
    rng = np.random.default_rng(1)
    points = points_of(("groups",), 2, REFERENCE)
    rounds = {p: [one_round(p, cost, rng) for _ in range(14 - n)] for n, p in enumerate(points)}
    first = rounds[points[0]]
    gone = type(first[2])(first[2].blocks, "most steps were preempted")
    rounds[points[0]] = [*first[:2], gone, *first[3:]]
    frame = rows(rounds, {}, MARGIN, {"run": "r"}, {}, {})
    texts = frame[(frame["clock"] == "ready") & (frame["arm"] == "candidate")]["lap_times_us"]
    lengths = [len(text.split()) for text in texts]
    assert lengths == [14, 13] and texts.iloc[0].split()[2] == "-"
    assert list(frame["laps"].unique()) == [13] and list(frame["laps_left_out"].unique()) == [1, 0]
    assert (frame["growth"] == "grows").all()


def test_one_point_alone_shows_nothing() -> None:
    rng = np.random.default_rng(1)
    point = points_of(("groups",), 2, REFERENCE)[0]
    frame = rows({point: [one_round(point, cost, rng)] * 12}, {}, MARGIN, {"run": "r"}, {}, {})
    assert (frame["growth"] == "inconclusive").all() and frame["ratio"].isna().all()


def test_unknown_columns_are_a_fault() -> None:
    with pytest.raises(ValueError, match="not columns: colour"):
        rows({}, {points_of(("groups",), 2, REFERENCE)[0]: "x"}, MARGIN, {"colour": 1}, {}, {})


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("growth", "flat", "the growth"),
        ("ratio", 1.5, "the ratio"),
        ("lap_times_us", "1.0 x", "could not convert"),
        ("lap_times_us", "1.0 0.0", "not above zero"),
        ("within_pct", 3.0, "the within_pct"),
    ],
)
def test_a_growth_that_the_laps_do_not_show_is_refused(
    tmp_path: Path, column: str, value: object, said: str
) -> None:
    frame = frame_of(("groups",)).astype({column: object})
    frame.loc[0, column] = value
    TABLE.append(tmp_path / "sweep.csv", frame.to_dict("records"))
    with pytest.raises(UsageError, match=rf"groups, baseline, host time.*{said}") as error:
        load(tmp_path / "sweep.csv")
    assert error.value.remedy


def test_a_point_that_is_there_twice_is_refused(path: Path, frame: pd.DataFrame) -> None:
    TABLE.append(path, (frame[frame["axis"] == "groups"]).to_dict("records"))
    with pytest.raises(
        UsageError, match="groups, baseline, host time: a point that is there twice"
    ):
        load(path)


def test_other_files_are_refused(tmp_path: Path, path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "missing.csv")
    for name, content in (("a.csv", b"a,b\n1,2\n"), ("b.csv", b""), ("c.csv", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError) as error:
            load(tmp_path / name)
        assert error.value.remedy
    (tmp_path / "d.csv").write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(UsageError, match="is no CSV of bench-prep sweep"):
        load(tmp_path / "d.csv")


def test_arms_are_those_of_the_laps(frame: pd.DataFrame) -> None:
    assert set(frame["arm"]) == set(ARMS)

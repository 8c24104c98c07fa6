"""Foreign files are completed, unusable ones named with their row and a remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench_prep.calibrate.trial import TABLE as calibrating
from bench_prep.errors import UsageError
from bench_prep.results.read import OTHERS, other_command
from bench_prep.results.row import BLOCK_COLUMNS, COLUMNS, NAMES
from bench_prep.serve.store import COLUMNS as serve
from bench_prep.steps.store import COLUMNS as steps
from bench_prep.sweep.store import COLUMNS as sweep
from tests.results.frames import append, load

HEADER = "baseline_before_ms,candidate_ms,baseline_after_ms"
PUBLISHED = f"{HEADER}\n0.259076,0.101048,0.258436\n"


def test_three_columns_are_enough(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(PUBLISHED)
    frame = load(path)
    assert list(frame.columns) == list(NAMES)
    row = frame.iloc[0]
    assert row["baseline_ms"] == 0.258436
    assert row["speedup"] == pytest.approx(2.557557, abs=1e-6)
    assert row["saved_ms"] == pytest.approx(0.157388)
    assert row["reduction_pct"] == pytest.approx(60.9, abs=0.01)
    assert row["drift_pct"] == pytest.approx(0.2476, abs=1e-4)
    assert row["effect_pct"] == pytest.approx(-60.948, abs=1e-3)
    assert row["verdict"] == "inconclusive", "one round settles nothing"
    assert row["clock"] == ""
    for unknown in ("schema", "equal", "rounds", "speedup_low", "effect_low_pct"):
        assert pd.isna(row[unknown]), unknown


@pytest.mark.parametrize(
    "text",
    [
        PUBLISHED.rstrip("\n"),
        PUBLISHED.replace("\n", "\r\n"),
        "\ufeff" + PUBLISHED,
        PUBLISHED.replace(",", " , "),
        PUBLISHED + "\n\n",
    ],
)
def test_ways_in_which_csvs_are_written(tmp_path, text) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, newline="")
    assert load(path)["speedup"].iloc[0] == pytest.approx(2.557557, abs=1e-6)


def test_extra_columns_and_a_tpot(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"card,tpot_ms,{HEADER}\nBW1000,45,0.259076,0.101048,0.258436\n")
    row = load(path).iloc[0]
    assert row["card"] == "BW1000"
    assert row["share_of_tpot_pct"] == pytest.approx(0.34975, abs=1e-4)


def test_given_figures_win(tmp_path, make_frame) -> None:
    """A file of several rounds has medians that cannot be derived from its three blocks."""
    path = tmp_path / "a.csv"
    path.write_text(f"rounds,speedup,{HEADER}\n7,2.5,0.259076,0.101048,0.258436\n")
    row = load(path).iloc[0]
    assert row["speedup"] == 2.5
    assert row["saved_ms"] == pytest.approx(0.157388)


def test_a_row_whose_outputs_differ_needs_no_times_and_shows_none(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"equal,{HEADER}\nfalse,,,\nFalse,0.2,0.1,0.2\nTRUE,0.2,0.1,0.2\n")
    frame = load(path)
    assert list(frame["verdict"]) == ["different", "different", "inconclusive"]
    assert frame["candidate_ms"].isna().tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "not a CSV"),
        (b"\xff\xfe,1\n", "not a CSV"),
        (b"# Results\nsome prose\n", "has no column baseline_before_ms, candidate_ms"),
        (b"baseline_before_ms,candidate_ms\n1,2\n", "has no column baseline_after_ms"),
        (f"{HEADER}\n".encode(), "a header and no rows"),
        (f"{HEADER},candidate_ms\n1,2,3,4\n".encode(), "two columns 'candidate_ms'"),
        (f"{HEADER}\n1,1,1\n1,x,1\n".encode(), "line 3: candidate_ms: 'x' is not a number"),
        (f"{HEADER}\n1,0,1\n".encode(), "line 2: candidate_ms: '0' is not a number above zero"),
        (f"{HEADER}\n1,1,-3\n".encode(), "line 2: baseline_after_ms: '-3' is not"),
        (f"{HEADER}\n1,nan,1\n".encode(), "line 2: candidate_ms: 'nan' is not"),
        (f"{HEADER}\ninf,1,1\n".encode(), "line 2: baseline_before_ms: 'inf' is not"),
        (f"{HEADER}\n1,,1\n".encode(), "line 2: candidate_ms is empty"),
        (f"{HEADER}\n1,1,1\n\n1,1,1,1\n".encode(), "line 4: 4 fields where the header has 3"),
        (f"{HEADER}\n1,1\n1,1,1\n".encode(), "line 2: 2 fields where the header has 3"),
        (f"{HEADER}\n1,1,1\n1,1".encode(), "line 3: the last row is torn"),
        (f'{HEADER},x\n1,1,1,"a\n'.encode(), "line 2: the last row is torn"),
        (f'{HEADER},x\n1,1,1,"a\nb"\n1,1,1,"a"b\n'.encode(), "line 4: "),
        (f"{HEADER},tpot_ms\n1,1,1,0\n".encode(), "line 2: tpot_ms: '0'"),
        (f"{HEADER},rounds\n1,1,1,2.5\n".encode(), "line 2: rounds: '2.5' is not a whole"),
        (f"{HEADER},equal\n1,1,1,maybe\n".encode(), "line 2: equal: 'maybe'"),
        (f"{HEADER},verdict\n1,1,1,good\n".encode(), "line 2: verdict: 'good'"),
        (f"{HEADER},drift_pct\n1,1,1,nan\n".encode(), "line 2: drift_pct: 'nan' is not a finite"),
        (
            f"{HEADER},schema\n1,1,1,9\n".encode(),
            "schema 9, and this bench-prep reads schema 1, 2, 3, 4, 5 and 6",
        ),
        (f"{HEADER},schema\n1,1,1,\n".encode(), "schema None, and this"),
        (f"{HEADER},schema\n1,1,1,1".encode(), "line 2: the last row is torn"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, content, says) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        load(path)
    assert str(path) in caught.value.message
    assert caught.value.remedy
    assert "\n" not in caught.value.message + caught.value.remedy


ROUNDED = f"baseline_ms,speedup,saved_ms,reduction_pct,drift_pct,tpot_ms,share_of_tpot_pct,{HEADER}"


def test_figures_that_were_rounded_for_reading_contradict_nothing(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{ROUNDED}\n0.258,2.56,0.157,60.9,0.25,45,0.35,0.2591,0.101,0.2584\n")
    assert load(path)["speedup"].iloc[0] == 2.56


@pytest.mark.parametrize(
    ("columns", "values", "says"),
    [
        ("speedup", "3.1", "speedup 3.1 is not baseline / candidate"),
        ("saved_ms", "0.2", "saved_ms 0.2 is not baseline - candidate"),
        ("reduction_pct", "70", "reduction_pct 70 is not 1 - candidate / baseline"),
        ("drift_pct", "5", "drift_pct 5 is not"),
        ("baseline_ms", "0.2590", None),
        ("baseline_ms", "0.3", "baseline_ms 0.3 is not min"),
        ("rounds,speedup", "7,30", "speedup 30 is far from baseline / candidate"),
        ("rounds,speedup,speedup_low,speedup_high", "7,2.6,2.7,2.8", "speedup 2.6 is outside"),
        ("speedup_low,reduction_low_pct", "2,70", "reduction_low_pct 70 is not"),
        ("tpot_ms,share_of_tpot_pct", "45,3.5", "share_of_tpot_pct 3.5 is not saved / TPOT"),
        ("verdict", "slower", "the verdict slower contradicts speedup"),
        (
            "rounds,verdict,speedup_low",
            "7,faster,0.9",
            "the verdict faster contradicts speedup_low",
        ),
        ("verdict", "faster", None),
    ],
)
def test_rows_that_contradict_themselves(tmp_path, columns, values, says) -> None:
    path = tmp_path / "a.csv"
    names = columns.split(",")
    given = dict(zip(names, values.split(","), strict=True))
    if "share_of_tpot_pct" in given:
        given["saved_ms"] = "0.157388"
    if "verdict" in given:
        given.setdefault("speedup", "2.557557")
    path.write_text(
        f"{','.join(given)},{HEADER}\n{','.join(given.values())},0.259076,0.101048,0.258436\n"
    )
    if says is None:
        load(path)
        return
    with pytest.raises(UsageError, match=f"line 2 contradicts itself: {says}"):
        load(path)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("verdict", "same", r"the verdict same does not follow .* \(faster\)"),
        ("verdict", "slower", "the verdict slower does not follow"),
        ("verdict", "inconclusive", "the verdict inconclusive does not follow"),
        ("verdict", "", "is missing"),
        ("effect_high_pct", "0.5", r"the verdict faster does not follow .* \(inconclusive\)"),
        ("effect_pct", "-70", "effect_pct -70 is outside its interval"),
        ("rounds", "2", r"the verdict faster does not follow .* \(inconclusive\)"),
        ("margin_pct", "90", r"the verdict faster does not follow .* \(same\)"),
        ("speedup", "3.9", "speedup 3.9 is"),
        ("reduction_high_pct", "99", "reduction_high_pct 99 is not"),
    ],
)
def test_own_rows_that_were_edited(tmp_path, make_frame, make_round, column, value, says) -> None:
    path = tmp_path / "a.csv"
    rounds = [make_round((200_000, 80_000 + 100 * n, 200_000)) for n in range(10)]
    append(path, make_frame(rounds=rounds))
    assert set(load(path)["verdict"]) == {"faster"}
    frame = pd.read_csv(path, dtype=str)
    frame.loc[1, column] = value
    frame.to_csv(path, index=False)
    with pytest.raises(UsageError, match=f"line 3 contradicts itself: .*{says}"):
        load(path)


ENDS = ("speedup_low", "speedup_high", "saved_low_ms", "saved_high_ms")
ENDS += ("reduction_low_pct", "reduction_high_pct")


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        (
            {
                "effect_pct": -60,
                "effect_low_pct": -61,
                "effect_high_pct": -59,
                "verdict": "faster",
            },
            "effect_pct -60 is far from",
        ),
        ({"rounds_left_out": 900}, r"the verdict same does not follow .* \(inconclusive\)"),
        (
            {"rounds_left_out": 900, "verdict": "inconclusive"},
            "effect_pct has an interval, and 11 rounds have none, 900 left out",
        ),
        ({"saved_ms": 0.09}, "saved_ms 0.09 is outside its interval"),
        ({"saved_ms": 0.19, "saved_high_ms": 0.2}, "saved_ms 0.19 is far from"),
        ({"reduction_pct": 90, **dict.fromkeys(ENDS, "")}, "reduction_pct 90 is far from"),
        (dict.fromkeys(ENDS, ""), "speedup or its interval is missing"),
        ({"speedup": 1.9, **dict.fromkeys(ENDS, "")}, "speedup or its interval is missing"),
        ({"speedup": 3.9, **dict.fromkeys(ENDS, "")}, "speedup 3.9 is far from"),
        ({"effect_low_pct": "", "verdict": "inconclusive"}, "effect_pct or its interval is"),
        ({"speedup": 50, "drift_pct": 300, **dict.fromkeys(ENDS, "")}, "speedup 50 is far from"),
        ({"drift_pct": 300}, None),
    ],
)
def test_own_rows_of_several_rounds_that_were_edited(
    tmp_path, make_frame, make_round, edits, says
) -> None:
    """Eleven rounds of a candidate that takes as long as vLLM, 0.2 ms: `same`."""
    path = tmp_path / "a.csv"
    append(
        path, make_frame(rounds=[make_round((200_000, 200_000 + n, 200_000)) for n in range(11)])
    )
    assert set(load(path)["verdict"]) == {"same"}
    frame = pd.read_csv(path, dtype=str)
    for column, value in edits.items():
        frame.loc[1, column] = str(value)
    frame.to_csv(path, index=False)
    if says is None:
        load(path)
        return
    with pytest.raises(UsageError, match=f"line 3 contradicts itself: .*{says}"):
        load(path)


@pytest.mark.parametrize("count", [2, 5, 6, 9, 10, 12, 40])
@pytest.mark.parametrize("candidate_ns", [4_000, 199_000, 5_000_000])
def test_noisy_rows_of_several_rounds_are_read(
    tmp_path, make_frame, make_round, count, candidate_ns
) -> None:
    """The machine is up to twice as slow in some rounds, and a block up to a third slower."""
    rng = np.random.default_rng([count, candidate_ns])
    path = tmp_path / "a.csv"
    for run in range(5):
        rounds = []
        for _ in range(count):
            factors = rng.uniform(1, 2) * (1 + rng.exponential(0.1, 3).clip(0, 0.35))
            blocks = np.array([200_000, candidate_ns, 200_000]) * factors
            rounds.append(make_round(tuple(int(ns) for ns in blocks)))
        append(path, make_frame(f"run-{run}", rounds=rounds))
    assert len(load(path)) == 10


def test_a_verdict_of_an_older_schema_is_kept(tmp_path, make_frame, make_round) -> None:
    """Two rounds were enough then, and no other figure says otherwise."""
    path = tmp_path / "a.csv"
    append(path, make_frame(rounds=[make_round()] * 2))
    frame = pd.read_csv(path, dtype=str).assign(verdict="faster")
    frame.to_csv(path, index=False)
    without_new_columns(path)
    assert set(load(path)["verdict"]) == {"faster"}
    assert load(path)["effect_pct"].isna().all()


def test_files_of_other_commands_are_known_by_a_column_of_theirs(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    columns = {"sweep": sweep, "steps": steps, "serve": serve, "calibrate": calibrating.columns}
    for command, those in columns.items():
        path.write_text(f"{','.join(c.name for c in those)}\n{',' * (len(those) - 1)}\n")
        assert other_command(path) == command
        rest = {*NAMES}.union(
            *({c.name for c in other} for name, other in columns.items() if name != command)
        )
        assert OTHERS[command] not in rest
    frame = make_frame()
    frame.to_csv(path, index=False)
    assert not other_command(path)
    frame.drop(columns=list(BLOCK_COLUMNS)).to_csv(path, index=False)
    assert not other_command(path), "a damaged result of run"


def test_no_such_file_and_folder(tmp_path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "a.csv")
    with pytest.raises(UsageError, match="is a folder"):
        load(tmp_path)


def test_own_file_cut_anywhere_is_never_read_as_whole(tmp_path, make_frame) -> None:
    whole = tmp_path / "whole.csv"
    append(whole, make_frame())
    content = whole.read_bytes()
    cut = tmp_path / "cut.csv"
    first_row_ends = [i for i, byte in enumerate(content) if byte == 10][1] + 1
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        if length == first_row_ends:
            assert len(load(cut)) == 1
            continue
        with pytest.raises(UsageError):
            load(cut)


OLDER = sorted((Path(__file__).resolve().parents[2] / "results").glob("*.csv"))
OLDER = [path for path in OLDER if not other_command(path)]


def without_new_columns(path: Path) -> None:
    """As a bench-prep with schema 1 wrote it."""
    frame = pd.read_csv(path, dtype=str).drop(columns=[c.name for c in COLUMNS if c.since > 1])
    frame.assign(schema="1").to_csv(path, index=False)


def test_an_older_schema_is_read_and_what_it_lacks_is_unknown(tmp_path, make_frame) -> None:
    path = tmp_path / "a.csv"
    append(path, make_frame(environment={"worktree_diff_sha256": "0" * 64}))
    assert set(load(path)["worktree_diff_sha256"]) == {"0" * 64}
    without_new_columns(path)
    frame = load(path)
    assert tuple(frame.columns) == NAMES
    assert set(frame["schema"]) == {1}
    assert set(frame["worktree_diff_sha256"]) == {""}


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.name)
def test_the_committed_results_stay_readable(path: Path) -> None:
    assert (load(path)["speedup"] > 0).all()

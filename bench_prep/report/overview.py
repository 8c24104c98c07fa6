"""Any number of runs in one view, labelled by what differs between them.

Rows are sorted by position, then block sizes (as numbers), then clock (host, ready, device), then
the other settings and the machine, then the time of start: rows to compare stand together. What
all rows share is said once, at the end; what differs labels the rows. The time of
start, the run and the file label rows only if nothing else tells them apart; which rows are of
which file is said below them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep.errors import UsageError, printable
from bench_prep.measure.records import CLOCKS
from bench_prep.measure.statistics import share_of_step
from bench_prep.report.cells import (
    CONFIDENT,
    HOST_IS_READY,
    NEEDS_ROUNDS,
    NONE,
    OUTPUT_TOKENS,
    change,
    cumulative,
    intervals,
    label,
    milliseconds,
    missing,
    percent,
    ratio,
    said,
    shown,
    together,
    with_unit,
)
from bench_prep.report.machine import ranges
from bench_prep.report.markdown import markdown as as_markdown
from bench_prep.report.notes import notes_section
from bench_prep.report.section import Section
from bench_prep.report.sections import FORMULAS, NOT_THE_SERVICE, SAME, run_sections, tpot_note
from bench_prep.report.tables import render
from bench_prep.results.read import load, other_command
from bench_prep.results.row import BY_NAME, NAMES, Row

#: The width for which the tables are laid out, in characters.
WIDTH = 80
_GAP = 2
_FILE = "file"
_CLOCKS = (HOST_IS_READY, *CLOCKS)
_SORT = ("mrope", "prompt_embeds", "candidate", "device_name", "vllm_version", "started", "run")
#: What labels rows only if nothing else tells them apart.
_LAST_RESORT = ("started", "run", _FILE)


def _block_sizes_key(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return (float("inf"),)


def _sort_key(row: Row) -> tuple[Any, ...]:
    return (
        float("inf") if row.position is None else row.position,
        _block_sizes_key(row.block_sizes),
        _CLOCKS.index(row.clock) if row.clock in _CLOCKS else len(_CLOCKS),
        *(shown(name, row.cell(name)) for name in _SORT),
    )


class _Cells:
    """All cells of some rows as texts, by column; a column that a file lacks is empty."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        extra = dict.fromkeys(name for row in rows for name in row.extra)
        self.columns = (*NAMES, *extra)
        self._texts: dict[str, list[str]] = {}

    def texts(self, name: str) -> list[str]:
        if name not in self._texts:
            self._texts[name] = [shown(name, row.cell(name)) for row in self.rows]
        return self._texts[name]

    def distinct(self, name: str) -> set[str]:
        """The different values of a column. That a foreign file, or one with a schema that did not
        have it yet, does not state it is none of them.
        """
        since = BY_NAME[name].since if name in BY_NAME else None
        return {
            text
            for text, row in zip(self.texts(name), self.rows, strict=True)
            if text != NONE
            or (since is not None and row.schema is not None and row.schema >= since)
        }

    def told_apart(self, names: Sequence[str]) -> int:
        """How many groups of rows these columns make."""
        values = [[str(row.cell(name)) for row in self.rows] for name in names]
        return len(set(zip(*values, strict=True))) if names else 1


def _label_columns(cells: _Cells) -> tuple[list[str], list[str]]:
    """The columns that label the rows, in the schema's order, and those that follow from them.

    Settings, the device and vLLM's version label rows wherever they differ. Any other fact about
    the machine does only where it tells rows apart that the labels do not; else it follows, as a
    driver does where there is one device of each kind. (See the module for the last resorts.)
    """
    differing = [
        name
        for name in cells.columns
        if (name not in BY_NAME or BY_NAME[name].group in ("setting", "environment"))
        and name not in (*_LAST_RESORT, "command")
        and len(cells.distinct(name)) > 1
    ]
    labels = [name for name in differing if not _is_fact(name)]
    following: list[str] = []
    for name in filter(_is_fact, differing):
        splits = cells.told_apart([*labels, name]) > cells.told_apart(labels)
        (labels if splits else following).append(name)
    labels.sort(key=cells.columns.index)
    for name in _LAST_RESORT:
        if cells.told_apart(labels) == len(cells.rows):
            break
        if name in cells.columns and len(cells.distinct(name)) > 1:
            labels.append(name)
    return labels, following


def _is_fact(name: str) -> bool:
    """Whether it is a fact about the machine or the versions, other than these two."""
    environment = name in BY_NAME and BY_NAME[name].group == "environment"
    return environment and name not in ("device_name", "vllm_version")


def _common(cells: _Cells) -> list[Section]:
    rows = []
    for name in cells.columns:
        if name in ("schema", "partial") or (name in BY_NAME and BY_NAME[name].group == "result"):
            continue
        if len(cells.distinct(name)) != 1 or cells.distinct(name) == {NONE}:
            continue
        stated = [value for row in cells.rows if not missing(value := row.cell(name))]
        suffix = "" if len(stated) == len(cells.rows) else " (where stated)"
        rows.append((label(name), with_unit(name, stated[0]) + suffix))
    return [Section("Common to all", ("what", "value"), tuple(rows), left=2)] if rows else []


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) for column in columns) + _GAP * (len(columns) - 1)


def _files_note(cells: _Cells) -> tuple[str, ...]:
    """Which rows are of which file, where there are several."""
    numbers: dict[str, list[int]] = {}
    for number, file in enumerate(cells.texts(_FILE) if _FILE in cells.columns else (), start=1):
        numbers.setdefault(file, []).append(number)
    if len(numbers) < 2:
        return ()
    return (
        f"Rows of {', of '.join(f'{file}: {ranges(some)}' for file, some in numbers.items())}.",
    )


class _Labelled:
    """Makes tables whose rows start with a number and, where they fit, the labels."""

    def __init__(self, cells: _Cells) -> None:
        labels, following = _label_columns(cells)
        self.number = ["row", *(str(number) for number in range(1, len(cells.rows) + 1))]
        self.labels = [[label(name), *cells.texts(name)] for name in labels]
        self.clock = [["clock", *cells.texts("clock")]] if "clock" in labels else []
        self.need_legend = False
        names = ", ".join(label(name) for name in following)
        self.notes: tuple[str, ...] = (
            (f"These differ together with the labels: {names}.",) if names else ()
        )
        if _FILE not in labels:
            self.notes += _files_note(cells)

    def legend(self) -> list[Section]:
        """Row numbers and labels, where a table had no room for them."""
        if not self.need_legend:
            return [Section("Labels", notes=self.notes)] if self.notes else []
        columns = [self.number, *self.labels]
        if _width(columns) > WIDTH:
            texts = [
                "; ".join(f"{column[0]}: {column[index]}" for column in self.labels)
                for index in range(1, len(self.number))
            ]
            columns = [self.number, ["what differs", *texts]]
        header, *rows = zip(*columns, strict=True)
        return [Section("Rows", header, tuple(rows), left=len(columns), notes=self.notes)]

    def table(
        self, title: str, header: tuple[str, ...], rows: Sequence[Sequence[str]], *notes: str
    ) -> Section:
        """A table of figures, one row per row of the results."""
        figures = [list(column) for column in zip(header, *rows, strict=True)]
        leading = [self.number, *self.labels]
        if _width([*leading, *figures]) > WIDTH:
            self.need_legend = True
            leading = [self.number, *self.clock]
        head, *body = zip(*leading, *figures, strict=True)
        return Section(title, head, tuple(body), left=len(leading), notes=notes)


def _overview_sections(rows: Sequence[Row]) -> list[Section]:
    cells = _Cells(rows)
    labelled = _Labelled(cells)
    share = any(row.share_of_tpot_pct is not None for row in rows)
    figures = [
        (
            percent(row.drift_pct, 2),
            ratio(row.speedup),
            milliseconds(row.saved_ms),
            percent(row.reduction_pct, 1),
            *((percent(row.share_of_tpot_pct, 2),) if share else ()),
        )
        for row in rows
    ]
    header = ("drift", "speedup", "saved ms", "reduction", *(("of TPOT",) if share else ()))
    formulas = [FORMULAS[name] for name in ("drift", "speedup", "saved", "reduction")]
    blocks = [
        [
            milliseconds(time)
            for time in (
                row.baseline_before_ms,
                row.candidate_ms,
                row.baseline_after_ms,
                row.baseline_ms,
            )
        ]
        for row in rows
    ]
    sections = [
        labelled.table(
            "Verdicts",
            ("verdict", "change", CONFIDENT, "margin"),
            [(said(row), *change(row)) for row in rows],
            f"{FORMULAS['effect']}. {SAME}",
        ),
        labelled.table(
            "Blocks: median ms per step",
            ("before", "candidate", "after", "baseline"),
            blocks,
            FORMULAS["baseline"] + ". Percentiles: in the CSV, and in the report of one run.",
        ),
        labelled.table(
            "Figures",
            header,
            figures,
            "; ".join(formulas) + ".",
            NOT_THE_SERVICE,
            tpot_note(rows),
        ),
    ]
    if any(row.speedup_low is not None for row in rows):
        sections.append(
            labelled.table(
                "95 % intervals",
                ("speedup", "saved ms", "reduction %"),
                [intervals(row) for row in rows],
                f"An interval {NEEDS_ROUNDS}.",
            )
        )
    sections.append(
        labelled.table(
            "Saved over a whole request, in ms, by output tokens",
            tuple(str(tokens) for tokens in OUTPUT_TOKENS),
            [cumulative(row) for row in rows],
            FORMULAS["cumulative"] + "; the first token comes from the prefill.",
        )
    )
    names = [f"row {number}" for number in labelled.number[1:]]
    verdicts, *others = sections
    notes = notes_section(rows, names)
    return [*labelled.legend(), verdicts, *notes, *others, *_common(cells)]


def report_sections(rows: Sequence[Row]) -> list[Section]:
    """The full view of one run where all rows are one run's clocks, else the overview.

    Raises:
        UsageError: no rows.
    """
    if not rows:
        raise UsageError("no results to report", "name at least one result CSV")
    rows = sorted(together(rows), key=_sort_key)
    runs = {row.run for row in rows}
    one_run = len(runs) == 1 and "" not in runs and len({row.clock for row in rows}) == len(rows)
    if one_run or len(rows) == 1:
        return run_sections(rows)
    return _overview_sections(rows)


def with_tpot(row: Row, tpot_ms: float) -> Row:
    """The row with the share of this TPOT (ms) if it has none of its own."""
    if row.tpot_ms is not None:
        return row
    share = None if row.saved_ms is None else share_of_step(row.saved_ms, tpot_ms) * 100
    return replace(row, tpot_ms=tpot_ms, share_of_tpot_pct=share)


#: How a command shows a file of its own again.
_SHOWS = {"sweep": "--from", "calibrate": "--show"}


def _shown_by(path: Path, command: str) -> str:
    if command in _SHOWS:
        return f"{path} is shown by bench-prep {command} {_SHOWS[command]} {path}"
    return f"{path} is of bench-prep {command}, which showed it when it ended"


def run_report(
    paths: Sequence[Path], markdown: bool, console: Console, tpot_ms: float | None = None
) -> None:
    """`bench-prep report`: reads the files and prints one view of them, tables or Markdown.

    A file that is named twice is read once. Beside others, one with rows of another command of
    bench-prep (`sweep`, `steps`, `serve`, `calibrate`) is left out, which is said. `tpot_ms` is
    the service's time per output token in milliseconds, for rows that were written without one.

    Raises:
        UsageError: no file, or one that cannot be used, with the file, the row and the remedy.
    """
    if tpot_ms is not None and not 0 < tpot_ms < float("inf"):
        raise UsageError(f"--tpot-ms: {tpot_ms} is not a time above zero", "give milliseconds")
    named = list({path.resolve(): path for path in paths}.values())
    others = {path: name for path in named if (name := other_command(path))}
    if others and len(others) == len(named):
        raise UsageError(
            f"no results of bench-prep run or engine: {', '.join(map(str, others))}",
            "; ".join(_shown_by(path, name) for path, name in others.items()),
        )
    results = [path for path in named if path not in others]
    rows = [
        replace(row, extra={_FILE: str(path), **row.extra})
        for path in results
        for row in load(path)
    ]
    if tpot_ms is not None:
        rows = [with_tpot(row, tpot_ms) for row in rows]
    sections = report_sections(rows)
    if markdown:
        console.out(as_markdown(sections), highlight=False, end="")
    else:
        console.print(render(sections))
    for path, name in others.items():
        print(printable(f"not shown: {_shown_by(path, name)}"), file=sys.stderr)

"""What a report shows, as text."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
from rich.console import Console

from bench_prep.report import overview, tables
from bench_prep.report.markdown import markdown as as_markdown
from bench_prep.report.overview import run_report
from bench_prep.report.tables import render
from tests.results.frames import all_rows

PUBLISHED = (
    "baseline_before_ms,candidate_ms,baseline_after_ms,tpot_ms\n0.259076,0.101048,0.258436,45\n"
)


def report_sections(frames):
    return overview.report_sections(all_rows(frames))


def render_report(frames):
    return render(report_sections(frames))


def report_markdown(frames):
    return as_markdown(report_sections(frames))


def result_view(frame):
    return tables.result_view(all_rows([frame]))


def printed(renderable, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(renderable)
    return file.getvalue()


def report(paths: list[Path], markdown: bool = False, **options: float) -> str:
    file = io.StringIO()
    run_report(paths, markdown, Console(file=file, width=80), **options)
    return file.getvalue()


def words(text: str) -> str:
    """The text without line breaks, to look for sentences."""
    return " ".join(text.split())


def runs(make_frame) -> list[pd.DataFrame]:
    return [
        make_frame("c", position=24576, started="2025-01-03T00:00:00Z"),
        make_frame("b", position=512, block_sizes="128,16"),
        make_frame("a", position=512, block_sizes="16,16"),
    ]


def section(frames, title: str):
    return next(s for s in report_sections(frames) if s.title.startswith(title))

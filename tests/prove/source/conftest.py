"""A failure of a long test is shown at once: the summary is lost when the time is up."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = (yield).get_result()
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    if report.failed and terminal is not None and call.excinfo is not None:
        terminal.write_line(f"\n{report.nodeid}: {call.excinfo.exconly()}")

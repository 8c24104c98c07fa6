"""A parent hears of events whose module it has not imported itself."""

from __future__ import annotations

import subprocess
import sys


def test_an_event_is_found_by_its_name() -> None:
    code = (
        "from bench_prep.child.parent_end import _parse\n"
        'line = b\'{"event": "bench_prep.decode.events:Imported", "package_dir": "vllm"}\'\n'
        "assert _parse(line).package_dir == 'vllm'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""The plugin's lines in vLLM's log: how each begins, shared by who writes and who reads them."""

from __future__ import annotations

MARK = "[bench-prep]"
RESERVED = "fast path reserved"
NOT_USED = "fast path not used"
FIRST_DISPATCH = "fast path dispatched for the first time"
#: The fast path gave up while the service runs.
CLOSED = "fast path closed"
#: The line for people; the one for programs is a JSON object whose `event` is this.
SUMMARY = "summary"
#: How the reason of a closed fast path begins when the self-check found it out.
CHECK_FAILED = "a step differs from vLLM's own path"

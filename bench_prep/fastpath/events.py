"""What the plugin says in vLLM's log: every line starts with `[bench-prep]`.

`bench-prep check-log` reads these lines back.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from bench_prep.fastpath.log_lines import CLOSED, FIRST_DISPATCH, MARK, NOT_USED, RESERVED, SUMMARY

#: Below vLLM's own logger, so that its handlers and its level apply.
_log = logging.getLogger("vllm.bench_prep")


def reserved(runner: Any, selfcheck: int, seconds: float) -> None:
    """The service gate is open and the state is reserved, which took `seconds`."""
    import vllm

    names = ", ".join(runner.model_config.hf_config.architectures or ["?"])
    groups = len(runner.input_batch.block_table.block_tables)
    checked = f", every {selfcheck}th step is checked" if selfcheck else ""
    _log.info(
        "%s %s: vLLM %s, %s on %s, KV groups: %d%s, in %.0f ms",
        MARK,
        RESERVED,
        vllm.__version__,
        names,
        runner.device,
        groups,
        checked,
        1000 * seconds,
    )


def closed(reason: str) -> None:
    """The service gate is closed: vLLM's own path is used."""
    _log.info("%s %s: %s", MARK, NOT_USED, reason)


def off(switch: str) -> None:
    """The user turned the fast path off."""
    _log.info("%s %s: turned off by %s", MARK, NOT_USED, switch)


def failed(error: Exception) -> None:
    """The set-up failed: vLLM's own path is used."""
    text = str(error).partition("\n")[0]
    name = type(error).__name__
    _log.warning("%s %s: its set-up failed (%s: %s)", MARK, NOT_USED, name, text)


def first_dispatch(position: int) -> None:
    """The step gate was open for the first time."""
    _log.info("%s %s, at position %d", MARK, FIRST_DISPATCH, position)


def closed_for_good(reason: str) -> None:
    """The fast path gave up while the service runs; vLLM's own path goes on."""
    _log.error("%s %s for this process, vLLM's own path goes on: %s", MARK, CLOSED, reason)


def summary(counts: dict[str, Any]) -> None:
    """Two lines: one for people, one of JSON for programs."""
    steps, dispatched = counts["decode_steps"], counts["dispatched"]
    share = f" ({100 * dispatched / steps:.1f} %)" if steps else ""
    reasons = sorted(counts["decode_fallbacks"].items(), key=lambda item: -item[1])
    others = "; else " + ", ".join(f"{n} {name}" for name, n in reasons) if reasons else ""
    _log.info(
        "%s %s: %d of %d decode steps by the fast path%s%s",
        MARK,
        SUMMARY,
        dispatched,
        steps,
        share,
        others,
    )
    _log.info("%s %s", MARK, json.dumps({"event": SUMMARY, **counts}))

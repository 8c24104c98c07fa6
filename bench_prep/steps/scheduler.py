"""vLLM's own scheduler, recorded: what `scheduler_cls` names, in the engine core's process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_prep.steps.parts import ENGINE_CORE, FOLDER, SCHEDULER_METHODS
from bench_prep.steps.recorder import Recorder, Switch


def recorded_scheduler(*args: Any, **kwargs: Any) -> Any:
    """The scheduler that vLLM would make, with two methods of this object recorded."""
    config = kwargs["vllm_config"].scheduler_config
    # As `SchedulerConfig.get_scheduler_cls` chooses where no class is given.
    if config.async_scheduling:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Own
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Own

    scheduler = Own(*args, **kwargs)
    folder = Path(os.environ[FOLDER])
    recorder, switch = Recorder(folder, ENGINE_CORE), Switch(folder)
    recorder.here()
    for method, name in SCHEDULER_METHODS.items():
        own = getattr(scheduler, method)
        setattr(scheduler, method, _switched(switch, own, recorder.recorded(name, own)))
    return scheduler


def _switched(
    switch: Switch, own: Callable[..., Any], recorded: Callable[..., Any]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return (recorded if switch.on else own)(*args, **kwargs)

    return run

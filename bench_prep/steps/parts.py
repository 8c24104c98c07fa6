"""What is recorded of a step, and by which hook of vLLM's; to be imported before vLLM.

Three ways, cheapest in intrusion first: vLLM's own scopes (`record_function_or_nullcontext`),
methods of the live worker and runner, methods of the live scheduler.
"""

from __future__ import annotations

#: The folder of the recordings; vLLM's own processes inherit it.
FOLDER = "BENCH_PREP_STEPS"
SCHEDULER = "bench_prep.steps.scheduler.recorded_scheduler"
WORKER = "bench_prep.steps.worker.RecordedWorker"

#: Who records: each has a file of its own (`recorder`).
ENGINE_CORE, RUNNER, OUTPUT, CLIENT = "engine core", "runner", "output", "client"
RECORDERS = (ENGINE_CORE, RUNNER, OUTPUT, CLIENT)

#: Methods of the scheduler, in vLLM's engine core.
SCHEDULER_METHODS = {"schedule": "schedule", "update_from_output": "output handling"}
#: Methods of the runner, two of them around all the others.
EXECUTE, SAMPLE_TOKENS = "execute_model", "sample_tokens"
RUNNER_METHODS = {
    "execute_model": EXECUTE,
    "sample_tokens": SAMPLE_TOKENS,
    "_update_states": "update states",
    "_prepare_inputs": "prepare inputs",
    "_build_attention_metadata": "attention metadata",
}
#: The whole preparation before the forward, with its own three methods.
PREPROCESS = "preprocess"
#: vLLM's scopes; `bookkeep` and those after it make the output.
SCOPES = {
    "gpu_model_runner: preprocess": PREPROCESS,
    "gpu_model_runner: forward": "forward launch",
    "gpu_model_runner: postprocess": "logits",
    "gpu_model_runner: sample": "sample",
    "gpu_model_runner: bookkeep": "bookkeeping",
    "gpu_model_runner: ModelRunnerOutput": "bookkeeping",
    "gpu_model_runner: AsyncGPUModelRunnerOutput": "bookkeeping",
    "gpu_model_runner: set_async_sampled_token_ids": "bookkeeping",
}
CLIENT_SCOPES = {"llm_engine step: process_outputs": "client"}
#: `AsyncGPUModelRunnerOutput.get_output` waits for the device and reads the sampled token.
GET_OUTPUT = "wait for the token"

#: Number of each name in the recordings, from 1.
NUMBERS: dict[str, int] = {
    name: number
    for number, name in enumerate(
        dict.fromkeys(
            (
                *SCHEDULER_METHODS.values(),
                *RUNNER_METHODS.values(),
                *SCOPES.values(),
                *CLIENT_SCOPES.values(),
                GET_OUTPUT,
            )
        ),
        1,
    )
}
NAMES: dict[int, str] = {number: name for name, number in NUMBERS.items()}

#: vLLM's own preparation and the fast path, as arms.
OWN, FAST = "own", "fast path"

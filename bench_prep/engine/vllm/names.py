"""Names that the processes of a proof share; to be imported before vLLM."""

#: vLLM's `load_format` and `worker_extension_cls` of an engine under proof.
LOAD_FORMAT = "bench_prep_varying"
WORKER_EXTENSION = "bench_prep.prove.model.worker.ProbedWorker"
TIMED_WORKER = "bench_prep.engine.stretches.TimedWorker"
#: The fast path's name in the entry-point group `vllm.general_plugins`.
PLUGIN = "bench_prep"

#: The phase whose tokens must vary.
GREEDY = "greedy"
#: The same request, in whose repetition the wrong slot is planted.
GREEDY_AGAIN = "the same again, from the prefix cache"

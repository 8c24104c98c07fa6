"""Names that the processes of a measured service share; to be imported before vLLM."""

from __future__ import annotations

#: The model's name in requests.
MODEL = "model"
WORKER_EXTENSION = "bench_prep.serve.worker.RandomWeights"
CLIENT = "bench_prep.serve.client_process"
SERVER = "bench_prep.serve.server_process"
#: Of a model without a tokenizer of its own: the contents alone, one after the other.
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"

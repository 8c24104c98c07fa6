"""The process of one server: vLLM's own command line, `vllm serve ...`, ended with its parent.

Started by `provenance.launch`; the job has the arguments. It sends no events: a server is asked
for its health, and says the rest in its log.
"""

from __future__ import annotations

import sys

from bench_prep.child.channel import end_with_parent, read_job

if __name__ == "__main__":  # vLLM's own processes import this module again
    sys.argv = ["vllm", *read_job()["arguments"]]
    end_with_parent()
    from vllm.entrypoints.cli.main import main

    main()

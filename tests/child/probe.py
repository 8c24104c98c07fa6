"""Stands in for the timing process: reads its job as the worker does, then runs its code."""

from bench_prep.child.channel import emit, read_job
from tests.child.said import Said

if __name__ == "__main__":
    job = read_job()
    exec(job["code"], {"emit": lambda data: emit(Said(data)), "job": job})

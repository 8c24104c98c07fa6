"""A child of which the work is the code that it is given."""

from bench_prep.child.job import do_job

if __name__ == "__main__":
    do_job(lambda job: exec(job["code"]))

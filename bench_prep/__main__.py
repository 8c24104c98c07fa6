"""`python -m bench_prep` is `bench-prep`."""

from bench_prep.cli.app import main

main()

#!/usr/bin/env bash
# Sets everything up, then does the whole main job: bench-prep run with the arguments given.
# Without --worktree the official vLLM for this machine is built and timed.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

own_worktree=${BENCH_PREP_WORKTREE:-}
for argument in "$@"; do
    case $argument in --worktree | --worktree=*) own_worktree=yes ;; esac
done
if [ -z "$own_worktree" ]; then
    if [ "$device" = rocm ]; then
        say "On ROCm and DTK the platform's own torch is used, and vLLM is built from your worktree"
        say "with the platform's compiler: name it with --worktree DIR (or BENCH_PREP_WORKTREE)."
        say "To time the installed vLLM as it is: .venv/bin/bench-prep run"
        exit 2
    fi
    say_if_edited
    export BENCH_PREP_WORKTREE=$official_worktree
    export BENCH_PREP_PRECOMPILED=${BENCH_PREP_PRECOMPILED:-$official_precompiled}
fi
exec "$venv/bin/bench-prep" run "$@"

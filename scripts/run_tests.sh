#!/usr/bin/env bash
# Sets everything up, installs vLLM from the official worktree, then runs pytest with the arguments given.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

if [ "$device" != rocm ]; then
    say_if_edited
    "$python" -m bench_prep.provenance.prepare install "$vllm"
fi
cd "$root"
if [ $# = 0 ] && [ "$device" = cpu ]; then
    set -- -n 2 --dist loadfile # two cores; a device would be shared
fi
exec "$python" -m pytest "$@"

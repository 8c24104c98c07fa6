# Sourced by run_bench.sh and run_tests.sh: makes the virtual environment .venv in the clone.
# Each step leaves a stamp with the hash of what it depends on; a step whose stamp fits is skipped.
#
#   BENCH_PREP_PYTHON   the Python to use (3.11 to 3.13); default: the first one found
#   BENCH_PREP_DEVICE   cpu, cuda or rocm; default: what this machine has

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
did_something=

say() { printf '[set-up] %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 6; }

# step NAME WHAT KEY COMMAND...: runs the command unless NAME was done with the same KEY, the content of WHAT.
step() {
    local stamp=$venv/stamps/$1 key
    key=$(printf '%s' "$3" | sha256sum | cut -d' ' -f1)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then return 0; fi
    if [ -f "$stamp" ]; then say "$1, again: $2 changed"; else say "$1"; fi
    did_something=yes
    local started=$SECONDS
    shift 3
    "$@" || fail "the step '${stamp##*/}' failed (see above); the next call begins with it"
    mkdir -p "$venv/stamps"
    printf '%s' "$key" > "$stamp"
    say "done in $((SECONDS - started)) s"
}

find_device() {
    if [ -n "${BENCH_PREP_DEVICE:-}" ]; then
        echo "$BENCH_PREP_DEVICE"
    elif nvidia-smi -L >/dev/null 2>&1; then
        echo cuda
    elif [ -e /dev/kfd ] || [ -d /opt/dtk ] || command -v hy-smi rocm-smi rocminfo >/dev/null; then
        echo rocm
    else
        echo cpu
    fi
}

find_python() {
    local candidate
    # The one of an existing .venv stays, whichever is first in the path now.
    for candidate in ${BENCH_PREP_PYTHON:-"$python" python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            # Not .venv's own, which the set-up may remove.
            "$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'
            return
        fi
    done
    fail "no Python 3.11 to 3.13 with its venv module was found: install python3 and python3-venv, or set BENCH_PREP_PYTHON"
}

# Which Python it is, under whatever name it is called, in .venv or not.
identity() {
    "$1" -c 'import os, sys; print("Python", sys.version.split()[0] + sys.abiflags, "of", os.path.realpath(sys.base_prefix))' 2>/dev/null
}

# why_anew STAMP PYTHON: why .venv must be made anew for this Python; nothing if it need not.
why_anew() {
    local is wanted other
    is=$(identity "$python" || true)
    wanted=$(identity "$2")
    other=$(cd "$venv/stamps" 2>/dev/null && ls -d "virtual environment in .venv "* 2>/dev/null | head -n 1 || true)
    if [ -z "$is" ]; then
        echo "its Python does not run any more"
    elif [ "$is" != "$wanted" ]; then
        echo "$wanted is to be used, and it has $is"
    elif ! "$python" -c 'import pip' 2>/dev/null; then
        echo "it has no pip for $is"
    elif [ -n "$other" ] && [ "$other" != "$1" ]; then
        echo "it was made for another device: ${other##* }, now ${1##* }"
    elif [ -z "$other" ]; then
        echo "it was not made by this set-up, or was not finished"
    fi
}

make_venv() { "$@" && "$python" -m pip --version; }
# The platform's own packages stay as they are: they were built to fit each other.
pip_install_beside() {
    "$python" -m pip list --format=freeze 2>/dev/null |
        grep -iE '^(numpy|torch|triton|vllm)==' > "$venv/platform.txt" || true
    pip_install -c "$venv/platform.txt" "$@"
}
pip_install() { "$python" -m pip --disable-pip-version-check install "$@"; }

fetch_official() {
    "$python" -m bench_prep.provenance.prepare fetch "$vllm" \
        --settings "$venv/official.sh" --requirements "$venv/vllm-requirements.txt"
}

# One line if the official worktree is not as it was unpacked.
say_if_edited() {
    local edited
    edited=$("$python" -c '
import sys
from bench_prep.provenance.official import edited_files
files = edited_files(sys.argv[1]) or []
print(", ".join(files[:3]) + (f" and {len(files) - 3} more" if files[3:] else ""))
' "$vllm") || true  # what cannot be read is told by the build
    if [ -n "$edited" ]; then
        say "the official worktree has been edited, and is used as it is: $edited; for a fresh one remove $official_worktree"
    fi
}

set_up() {
    exec 9< "$root"
    flock -n 9 || { say "another set-up is running in this clone: waiting for it"; flock 9; }

    device=$(find_device)
    local found why environment="virtual environment in .venv ($device)"
    found=$(find_python)
    # What was installed for another device or Python must not linger.
    local base=(-m venv --clear)
    case $device in
        cpu) torch=2.13.0 vllm=0.32.0 ;;
        cuda) torch=2.11.0 vllm=0.26.0 ;;
        rocm)
            # ROCm and DTK bring their own torch, triton and vLLM: nothing of theirs is replaced.
            base+=(--system-site-packages)
            ;;
        *) fail "BENCH_PREP_DEVICE=$device is not one of cpu, cuda, rocm" ;;
    esac

    if [ -d "$venv" ]; then
        why=$(why_anew "$environment" "$found")
        if [ -n "$why" ]; then
            say ".venv is made anew: $why"
            rm -rf "$venv/stamps"
        fi
    fi
    # What it was made with is asked of .venv itself.
    if [ ! -f "$venv/stamps/$environment" ]; then
        step "$environment" '' made make_venv "$found" "${base[@]}" "$venv"
    fi
    if [ "$device" = rocm ]; then
        step "bench-prep itself" pyproject.toml "$(cat "$root/pyproject.toml")" pip_install_beside -e "$root[dev]"
    else
        step "torch $torch and the tools of vLLM's build" \
            scripts/build-requirements.txt "$torch $(cat "$root/scripts/build-requirements.txt")" \
            pip_install "torch==$torch" -r "$root/scripts/build-requirements.txt"
        step "bench-prep itself" pyproject.toml "$(cat "$root/pyproject.toml")" pip_install -e "$root[dev]"
        official_worktree='' official_precompiled=''
        if [ -f "$venv/official.sh" ]; then . "$venv/official.sh"; fi
        # A cache that was emptied since counts as not fetched.
        if [ ! -d "$official_worktree" ] || [ ! -f "$official_precompiled" ]; then
            if [ -n "$official_worktree" ]; then say "vLLM $vllm is not in the cache any more"; fi
            rm -f "$venv/stamps/vLLM $vllm, official sources and compiled parts"
        fi
        step "vLLM $vllm, official sources and compiled parts" \
            BENCH_PREP_CACHE "$vllm ${BENCH_PREP_CACHE:-}" fetch_official
        . "$venv/official.sh"
        # Triton: the kernel is interpreted and compiled ahead of time in the tests.
        step "what vLLM $vllm needs at run time" "the list of it" "$(cat "$venv/vllm-requirements.txt")" \
            pip_install -r "$venv/vllm-requirements.txt" 'triton>=3.6,<4'
    fi
    if [ -z "$did_something" ]; then say "nothing to do: .venv is ready ($device)"; fi
    exec 9>&-
}

set_up

#!/bin/sh
# conformance.sh [NAME ...] -- compare lineshaft with PyTorch, transformers, tokenizers and peft.
#
# Runs every tests/conformance/*.py, or those whose names are given, in the environment that
# bench/peers/setup.sh keeps outside the tree, and builds the programs of tests/conformance/*.c that
# they talk to. A script prints what it checks; exit status 77 with a reason as the last line means
# skipped, any other but 0 failed. What is no check by itself lies in tests/conformance/tools.
# llama.cpp is asked where llama-cpp-python is installed there by hand: it is built from source, which
# takes half an hour.
# Files are made in a scratch folder that goes away. Exit status: 0 all well, 1 something failed,
# 77 there is no environment and none could be made.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
python=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers/bin/python
names=$*

if ! sh bench/peers/setup.sh; then
    echo "conformance: skipped, there is no Python environment with the packages to compare with"
    exit 77
fi
programs=
for source in tests/conformance/*.c; do
    programs="$programs build/test/conformance-$(basename "$source" .c)"
done
# shellcheck disable=SC2086
make --no-print-directory MODE=test build/test/lineshaft $programs

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export LINESHAFT_ROOT="$root" LINESHAFT="$root/build/test/lineshaft"
export LINESHAFT_PROBE="$root/build/test/conformance-probe"
export LINESHAFT_DATA="$root/../shared/data" # may be absent; then scripts skip what needs it
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
export PYTHONDONTWRITEBYTECODE=1 NO_COLOR=1
# Random strings for each tokenizer: the whole suite is to take minutes.
export CONFORMANCE_LINES="${CONFORMANCE_LINES:-3000}" CONFORMANCE_FILES="${CONFORMANCE_FILES:-20}"

run_script() { # run_script NAME, in its scratch folder
    script=$root/tests/conformance/$1.py
    case $1 in # those that are told on the command line what to run
    template) set -- "$root/build/test/conformance-render" "$LINESHAFT_DATA" ;;
    tokenizer) set -- "$LINESHAFT" ;;
    bpe_train) # the smaller text is enough here
        set -- "$LINESHAFT"
        text=$LINESHAFT_DATA/text/tinyshakespeare.txt
        [ ! -e "$text" ] || set -- "$@" "$text"
        ;;
    *) set -- ;;
    esac
    "$python" "$script" "$@"
}

run_one() { # run_one NAME; the result is in its log and its rc file
    began=$(date +%s)
    rc=0
    (cd "$scratch/$1" && run_script "$1") >"$scratch/$1.log" 2>&1 || rc=$?
    rm -rf "${scratch:?}/$1"/*
    echo "$rc $(($(date +%s) - began))" >"$scratch/$1.rc"
}

passed=0 failed=0 skipped=0 failures=
report() { # report NAME
    read -r rc took <"$scratch/$1.rc"
    echo "-- $1"
    sed 's/^/   /' "$scratch/$1.log"
    if [ "$rc" = 0 ] && [ -s "$scratch/$1.log" ]; then
        passed=$((passed + 1))
        echo "-- $1: passed, $took s"
    elif [ "$rc" = 77 ]; then
        skipped=$((skipped + 1))
        echo "-- $1: skipped ($(tail -n 1 "$scratch/$1.log"))"
    else
        failed=$((failed + 1))
        failures="$failures $1"
        echo "-- $1: FAILED (exit $rc), $took s"
    fi
}

# As many at once as there are cores: each of these takes what nobody has taken, whose folder can be
# made. The longest ones begin.
todo=
for script in tests/conformance/tokenizer.py tests/conformance/bpe_train.py tests/conformance/*.py; do
    name=$(basename "$script" .py)
    case " $names " in
    "  " | *" $name "*) ;;
    *) continue ;;
    esac
    case " $todo " in *" $name "*) ;; *) todo="$todo $name" ;; esac
done
take_what_is_left() {
    for n in $todo; do
        if mkdir "$scratch/$n" 2>/dev/null; then run_one "$n"; fi
    done
}
cores=$(nproc)
while [ "$cores" -gt 0 ]; do
    take_what_is_left &
    cores=$((cores - 1))
done
wait
for n in $todo; do report "$n"; done
[ -z "$failures" ] || echo "conformance: failed:$failures"
echo "conformance: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ $((passed + skipped)) -gt 0 ] # a name that fits nothing is a mistake

#!/bin/sh
# conformance.sh [NAME ...] -- compare lineshaft with PyTorch, transformers, tokenizers and peft.
#
# Runs every tests/conformance/*.py, or those whose names are given, in the environment that
# bench/peers/setup.sh keeps outside the tree, and builds the programs of tests/conformance/*.c that
# they talk to. A script prints what it checks; exit status 77 with a reason as the last line means
# skipped, any other but 0 failed. What is no check by itself lies in tests/conformance/tools.
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

passed=0 failed=0 skipped=0 failures=
for script in tests/conformance/*.py; do
    name=$(basename "$script" .py)
    case " $names " in
    "  " | *" $name "*) ;;
    *) continue ;;
    esac
    [ "$name" != fingerprint ] || continue # a tool: it writes beside a folder that it is given
    mkdir "$scratch/$name"
    began=$(date +%s)
    echo "-- $name"
    rc=0
    (cd "$scratch/$name" && run_script "$name") >"$scratch/$name.log" 2>&1 || rc=$?
    sed 's/^/   /' "$scratch/$name.log"
    rm -rf "${scratch:?}/$name"
    took=$(($(date +%s) - began))
    if [ "$rc" = 0 ] && [ -s "$scratch/$name.log" ]; then
        passed=$((passed + 1))
        echo "-- $name: passed, $took s"
    elif [ "$rc" = 77 ]; then
        skipped=$((skipped + 1))
        echo "-- $name: skipped ($(tail -n 1 "$scratch/$name.log"))"
    else
        failed=$((failed + 1))
        failures="$failures $name"
        echo "-- $name: FAILED (exit $rc), $took s"
    fi
done
[ -z "$failures" ] || echo "conformance: failed:$failures"
echo "conformance: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]

#!/bin/sh
# fuzz.sh PROGRAM ... -- run each libFuzzer program for FUZZ_SECONDS (60), as many at once as there
# are cores. Seeds: tests/fuzz/corpus/NAME/, where NAME is the program's name, with or without its
# "fuzz_". What a run finds stays in build/fuzz/corpus/ for the next one. With FUZZ_SEED the inputs
# of a fresh tree are the same every time (CI); without it they are new ones. Prints executions per
# program; a crash, leak, hang or flood of memory fails, and the input that does it is kept.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
seconds=${FUZZ_SECONDS:-60} # also when it is set but empty
cores=$(nproc)
work=$root/build/fuzz/runs
if [ $# = 0 ]; then
    echo "fuzz: no targets in tests/fuzz"
    exit 0
fi
unset LINESHAFT_FAULT

run_one() { # run_one PROGRAM; the result is in its log and its rc file
    program=$(realpath "$1")
    name=$(basename "$1")
    scratch=$work/$name
    found=$root/build/fuzz/corpus/$name
    rm -rf "$scratch"
    mkdir -p "$scratch" "$found"
    set -- "$found"
    for seeds in "$root/tests/fuzz/corpus/$name" "$root/tests/fuzz/corpus/${name#fuzz_}"; do
        if [ -d "$seeds" ]; then set -- "$@" "$seeds"; fi
    done
    rc=0
    (cd "$scratch" && "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -seed="${FUZZ_SEED:-0}" \
        -print_final_stats=1 -artifact_prefix="$root/build/fuzz/$name-" "$@") \
        >"$work/$name.log" 2>&1 || rc=$?
    echo "$rc" >"$work/$name.rc"
}

bad=0
report() { # report NAME
    rc=$(cat "$work/$1.rc" 2>/dev/null || echo killed)
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$1.log")
    if [ "$rc" = 0 ] && [ "${runs:-0}" -gt 0 ]; then
        echo "  fuzz   $1: $runs executions in $seconds s, $(find "build/fuzz/corpus/$1" -type f | wc -l) inputs kept"
        return
    fi
    bad=1
    tail -n 40 "$work/$1.log"
    echo "  FAILED $1 (exit $rc); the whole log: build/fuzz/runs/$1.log"
    echo "         again with the input named above: build/fuzz/$1 INPUT"
}

mkdir -p "$work"
waiting=
running=0
for program in "$@"; do
    name=$(basename "$program")
    rm -f "$work/$name.rc"
    run_one "$program" &
    waiting="$waiting $name"
    running=$((running + 1))
    if [ "$running" -ge "$cores" ]; then
        wait
        for n in $waiting; do report "$n"; done
        waiting=
        running=0
    fi
done
wait
for n in $waiting; do report "$n"; done
exit $bad

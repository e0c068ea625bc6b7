#!/bin/sh
# ckpt_faults.sh [INSTANTS] -- the long versions of what tests try shortly: rows 19 to 25 and 34 of the table of faults. INSTANTS
# (200) kills and images of a disk. Prints one line for each row; ends with 1 when one of them fails. Takes some minutes; needs root for
# 19 and 21 (mounts), and says what it left out.
set -eu
cd "$(dirname "$0")/.."
instants=${1:-200}
make --no-print-directory build/release/lineshaft >/dev/null
make --no-print-directory MODE=test build/test/lineshaft build/test/lineshaft-test >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

# row NUMBER WHAT COMMAND...: its last line, or its last lines when it fails.
row() {
    number=$1 what=$2
    shift 2
    if "$@" >"$work/log" 2>&1; then
        echo "row $number ok: $what: $(grep -v '^$' "$work/log" | tail -n 1)"
    else
        echo "row $number FAILED: $what"
        tail -n 20 "$work/log"
        bad=1
    fi
}
script() { # a script of tests/e2e in a folder of its own
    mkdir -p "$work/$1" && (cd "$work/$1" && LINESHAFT_ROOT="$OLDPWD" sh "$OLDPWD/tests/e2e/$1.sh")
}

row 19 "a tmpfs that is full at every 5 % of a save" build/test/lineshaft-test crash_full_disk crash_disk_that_fills crash_leftovers
row 19 "the same while a run trains" sh -c "LINESHAFT_FAULTS_DIR=$work/full python3 bench/ckpt_faults.py full"
row "20, 34" "every call with every error; late names, stale handles" env ALL=1 sh -c "
    mkdir -p '$work/badfs' && root=\$PWD && cd '$work/badfs' && LINESHAFT_ROOT=\$root sh \$root/tests/e2e/ckpt_bad_disk.sh"
row 21 "$instants images of an ext4 disk" env CKPT_ROUNDS="$instants" build/test/lineshaft-test power_cut
row 22 "flipped, cut, swapped, missing" build/test/lineshaft-test tests/checkpoint/test_damage tests/checkpoint/test_two
row 23 "$instants kills in a save" env CKPT_ROUNDS="$instants" build/test/lineshaft-test crash_kill_at
row 23 "$instants kills of a run that saves" sh -c "LINESHAFT_FAULTS_DIR=$work/kill python3 bench/ckpt_faults.py kill $instants"
row 24 "$instants times asked to stop" sh -c "LINESHAFT_FAULTS_DIR=$work/term python3 bench/ckpt_faults.py term $instants"
row 25 "written by 4, read by 1, 2, 3, 4, 8" build/test/lineshaft-test parts_of_four_writers
row 25 "the same by ranks" script shards
exit $bad

# shellcheck shell=sh
# checks.sh -- what the scripts of this folder begin with; sourced by them with their arguments. Finds the program,
# goes into the folder of the runs, and counts checks.
# Equal bits are promised in ordered mode without any variable: those that say otherwise are taken away.
root=$(cd "$(dirname "$0")/../.." && pwd)
LINESHAFT=${LINESHAFT:-$root/build/release/lineshaft}
DEVICE=${DEVICE:-cuda}
unset LINESHAFT_CUDA_ALGORITHMS
export NO_COLOR=1
failed=0
checks=0
steps=20 # of a run; scripts set their own

case $LINESHAFT in
/*) ;;
*) LINESHAFT=$PWD/$LINESHAFT ;;
esac
[ -x "$LINESHAFT" ] || {
    echo "there is no program \"$LINESHAFT\": run make" >&2
    exit 2
}
if [ $# -gt 0 ]; then
    mkdir -p "$1" && cd "$1" || exit 2
else
    folder=$(mktemp -d) && cd "$folder" || exit 2
    trap 'rm -rf "$folder"' EXIT
fi

# write_text LINES: text.txt, of so many sentences.
write_text() {
    awk -v lines="$1" 'BEGIN {
        split("wheel shaft belt mill river miller horse", n, " "); split("turns drives stops follows", v, " ")
        x = 12345
        for (i = 0; i < lines; i++) {
            x = (x * 1103515245 + 12345) % 2147483648; r = int(x / 65536)
            print "the " n[r % 7 + 1] " " v[r % 4 + 1] " the " n[int(r / 7) % 7 + 1] "."
        }
    }' >text.txt
}

# result TEXT STATUS: one line for a check.
result() {
    checks=$((checks + 1))
    if [ "$2" = 0 ]; then
        echo "ok      $1"
    else
        echo "FAILED  $1"
        failed=$((failed + 1))
    fi
}

# losses NAME: "step loss" of every step of NAME.json, and "valSTEP loss" of every validation.
losses() {
    sed -n 's/^{"event":"step","step":\([0-9]*\),"loss":\([^,}]*\),.*/\1 \2/p
            s/^{"event":"eval","step":\([0-9]*\),.*"val_loss":\([^,}]*\).*/val\1 \2/p' "$1.json"
}

# near NAME REFERENCE TOLERANCE: losses of all $steps steps and of validation, relative; says the largest difference.
near() {
    losses "$1" >a.txt
    losses "$2" >b.txt
    [ "$(wc -l <a.txt)" -ge "$steps" ] || return 1
    awk -v tolerance="$3" 'NR == FNR { want[$1] = $2; next }
        $1 in want { n++; d = ($2 - want[$1]) / want[$1]; if (d < 0) d = -d; if (!(d <= most)) most = d }
        END { printf "        largest relative difference %.2g in %d losses\n", most, n; exit !(n > 1 && most <= tolerance) }' \
        b.txt a.txt
}

# finish: how many passed; ends the script with the number of those that did not, at most 100.
finish() {
    echo "$((checks - failed)) of $checks checks passed"
    [ $failed -le 100 ] || failed=100
    exit $failed
}

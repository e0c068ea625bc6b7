#!/bin/sh
# parallel_table.sh [ordered] [fast] -- the table of data parallel and ZeRO: a tiny model on every mesh beside one process, with clipping,
# dropout and weight decay on, and 16 leaves that 3 and 5 ranks share unevenly.
#   ordered  50 steps: every loss and the hash of the weights must have the same bits
#   fast     30 steps: every loss must be within 1e-4 of it
#   RANKS="1 2 3 4 5 8"  ZEROS="0 1 2 3"  LEAVES="1 2 4 8" (leaves of a call)  STEPS=50  FAST_STEPS=30  LINESHAFT=PROGRAM
# Ends with 1 when a mesh differs. No figure of speed: it may run on a busy machine.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ordered fast
for word in "$@"; do
    case $word in
    ordered | fast) ;;
    *)
        echo "usage: $0 [ordered] [fast]" >&2
        exit 2
        ;;
    esac
done
program=${LINESHAFT:-}
if [ -z "$program" ]; then
    make --no-print-directory build/release/lineshaft >/dev/null
    program=$PWD/build/release/lineshaft
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/run.yaml" <<'YAML'
name: table
model: {family: gpt2, layers: 2, width: 64, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 16, leaf: 1, group: 1}
train: {lr: 3e-3, schedule: constant, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3}
mesh: {bucket: 64KiB}
checkpoint: {every: 0, keep: 1}
eval: {every: 0, sequences: 5, sample: ""}
YAML
cd "$work"

# train STEPS MODE RANKS ZERO GROUP: losses, and in the last line the hash, to "got"
train() {
    rm -rf run
    "$program" train run.yaml --json -n "$3" --set "train.steps=$1" --set "train.reduce=$2" --set "mesh.zero=$4" \
        --set "batch.group=$5" --set out=run >events 2>err || {
        cat err
        return 1
    }
    python3 -c '
import json
for row in map(json.loads, open("events")):
    if row["event"] == "step":
        print(row["step"], repr(row["loss"]))
    if row["event"] == "summary":
        print("hash", row["weights_hash"])' >got
}
# verdict MODE: how "got" stands to "want"
verdict() {
    if [ "$1" = ordered ]; then
        if cmp -s want got; then echo "equal"; else echo "DIFFERS"; fi
    else
        paste -d ' ' want got | awk '$1 != "hash" { d = ($2 - $4) / $2; d = d < 0 ? -d : d; most = d > most ? d : most; n++
            bad += $1 != $3 } END { printf "%s %.1e\n", (bad || !n || most > 1e-4 ? "STRAYS" : "within"), most }'
    fi
}

bad=0
for mode in "$@"; do
    steps=${STEPS:-50}
    [ "$mode" = ordered ] || steps=${FAST_STEPS:-30}
    train "$steps" "$mode" 1 0 1
    cp got want
    echo "$mode, $steps steps, beside one process ($(tail -n 1 want))"
    printf '%6s %6s' ranks zero
    for group in ${LEAVES:-1 2 4 8}; do printf '  %-14s' "$group in a call"; done
    echo
    for n in ${RANKS:-1 2 3 4 5 8}; do
        for zero in ${ZEROS:-0 1 2 3}; do
            printf '%6s %6s' "$n" "$zero"
            for group in ${LEAVES:-1 2 4 8}; do
                if train "$steps" "$mode" "$n" "$zero" "$group" >fault; then word=$(verdict "$mode"); else word="FAILED"; fi
                printf '  %-14s' "$word"
                case $word in [A-Z]*) bad=1 ;; esac
            done
            echo
        done
    done
done
exit $bad

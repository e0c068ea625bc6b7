#!/bin/sh
# ps.sh [TEXT] -- a parameter server (sync: ps) beside all-reduce (fast mode), the same model and batches, with one rank
# slowed: tokens/s (median) and validation loss of staleness 0, 2, 8 and none. TEXT: ../shared/data/text/tinyshakespeare.txt.
#   RANKS=2  LAYERS=2  WIDTH=64  STEPS=300  BATCH=16  LR=2e-3  MEET=50  TIED=true  BOUNDS="0 2 8 -1"
#   SLOW=1@1+ (rank, and when: 1@1+ is rank 1 in every call, 1@20 in its 20th call only; "": nobody)
# The rank is slowed by a fault point (train.slow.N), which sleeps as long as the rank has computed; only the program of
# the tests has it, which is compiled as the released one but for that.
set -eu
here=$(dirname "$0")
text=$(realpath "${1:-$here/../../shared/data/text/tinyshakespeare.txt}")
cd "$here/.."
make --no-print-directory test FILTER=fault_without_a_turn >/dev/null
program=$PWD/build/test/lineshaft
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed "s#TEXT#$text#" bench/nanogpt_small.yaml >"$folder/run.yaml"
cd "$folder"
slow=${SLOW-1@1+}
# side NAME SETTING...: a run with these settings.
side() {
    name=$1
    shift
    sets=
    for word in "$@"; do
        sets="$sets --set $word"
    done
    # shellcheck disable=SC2086 # words are what is wanted
    env ${slow:+"LINESHAFT_FAULT=train.slow.$slow"} "$program" train run.yaml --json -n "${RANKS:-2}" $sets --set "out=$name" \
        --set train.reduce=fast --set "batch.sequences=${BATCH:-16}" --set batch.leaf=1 --set "train.steps=${STEPS:-300}" \
        --set "model.layers=${LAYERS:-2}" --set "model.width=${WIDTH:-64}" --set "model.tied=${TIED:-true}" --set "train.lr=${LR:-2e-3}" \
        --set device.threads=1 --set eval.every=0 >"$name.log" 2>&1 || {
        cat "$name.log" >&2
        exit 1
    }
}
side allreduce sync=allreduce
for bound in ${BOUNDS:-0 2 8 -1}; do
    side "ps$bound" sync=ps "ps.staleness=$bound" "ps.meet=${MEET:-50}"
done
# shellcheck disable=SC2086 # words are what is wanted
python3 - ${BOUNDS:-0 2 8 -1} <<'PY'
import json, sys

print(f"{'':18} {'tokens/s':>9} {'seconds':>8} {'validation':>11} {'ahead':>6} {'MB sent by the first rank':>26}")
for name in ["allreduce"] + ["ps" + bound for bound in sys.argv[1:]]:
    end = [json.loads(line) for line in open(f"{name}/events.jsonl")][-1]
    what = name if name == "allreduce" else f"ps, staleness {name[2:]}"
    print(f"{what:18} {end['tokens_per_s']:9.0f} {end['seconds']:8.2f} {end['val_loss']:11.4f} {end.get('ahead', '-'):>6} "
          f"{end.get('push_bytes', 0) / 1e6 or '-':>26}")
PY

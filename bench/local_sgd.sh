#!/bin/sh
# local.sh [TEXT] -- replicas that agree now and then (sync: local, int8) beside all-reduce (fast mode), the same model,
# batches and number of tokens, one rank on each of several lab hosts: validation losses over the whole validation part
# and bytes between hosts. TEXT: ../shared/data/text/tinyshakespeare.txt. Needs root; prints no times, so the machine
# need not be quiet.
#   HOSTS=2  LAYERS=2  WIDTH=64  STEPS=3000  BATCH=16  LR=4e-3  SEED=1337  H=50  SETS="local.delay=5 local.lr=0.7" (of replicas)
set -eu
here=$(dirname "$0")
text=$(realpath "${1:-$here/../../shared/data/text/tinyshakespeare.txt}")
cd "$here/.."
make --no-print-directory lineshaft >/dev/null
program=$PWD/lineshaft
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed "s#TEXT#$text#" bench/nanogpt_small.yaml >"$folder/run.yaml"
cd "$folder"
# side NAME SETTING...: the summary of a run.
side() {
    name=$1
    shift
    sets=
    for word in "$@"; do
        sets="$sets --set $word"
    done
    # shellcheck disable=SC2086 # words are what is wanted
    "$program" lab --nodes "${HOSTS:-2}" -- "$program" train run.yaml --json $sets --set "out=$name" \
        --set train.reduce=fast --set "batch.sequences=${BATCH:-16}" --set batch.leaf=1 --set "train.steps=${STEPS:-3000}" \
        --set "model.layers=${LAYERS:-2}" --set "model.width=${WIDTH:-64}" --set "train.lr=${LR:-4e-3}" --set "train.seed=${SEED:-1337}" --set device.threads=1 \
        --set eval.every=500 --set eval.sequences=1000000 >"$name.log" 2>&1 || {
        cat "$name.log" >&2
        exit 1
    }
}
side allreduce sync=allreduce
# shellcheck disable=SC2086 # words are what is wanted
side local sync=local "local.steps=${H:-50}" ${SETS:-}
python3 - <<'PY'
import json

def read(name):
    rows = [json.loads(line) for line in open(f"{name}/events.jsonl")]
    end = rows[-1]
    evals = " ".join(f"{e['step']}: {e['val_loss']:.4f}" for e in rows if e["event"] == "eval")
    return end["val_loss"], end["sent_bytes"] + end["received_bytes"], end, evals

a, b = read("allreduce"), read("local")
print(f"{a[2]['steps']} steps, {a[2]['tokens']} tokens on each side; local: {b[2]['exchanges']} exchanges")
for name, (loss, wire, end, evals) in (("allreduce", a), ("local", b)):
    print(f"{name:10} validation loss {loss:.4f}   {wire / 1e6:10.3f} MB between hosts, first rank, both ways")
    print(f"{'':10} {evals}")
print(f"local: {100 * (b[0] / a[0] - 1):+.2f} % validation loss, {a[1] / b[1]:.0f} times less traffic")
PY

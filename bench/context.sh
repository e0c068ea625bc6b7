#!/bin/sh
# context.sh -- a context of 128k tokens on tiny widths (one layer, width 16) shared by four ranks (mesh.cp: 4), by ring and
# by gather, against one process: losses must agree within 1e-4. Prints them, the activations of a rank (ledger) and the
# seconds of a step, which mean something on a quiet machine with as many cores as ranks.
#   CONTEXT=131072  CP=4  STEPS=1  THREADS=1
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory build/release/lineshaft >/dev/null
program=$PWD/build/release/lineshaft
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 100000 >numbers.txt
cat >run.yaml <<YAML
name: context
model: {family: llama, layers: 1, width: 16, heads: 1, context: ${CONTEXT:-131072}, mlp: 16}
data: {text: [numbers.txt], tokenizer: bytes, validation: 0}
batch: {sequences: 1}
train: {steps: ${STEPS:-1}, lr: 1e-3, warmup: 0, schedule: constant, reduce: fast}
device: {threads: ${THREADS:-1}}
checkpoint: {every: 0}
eval: {every: 0, sequences: 1, sample: ""}
YAML
"$program" train run.yaml --json --set out=one >one.log
for keys in ring gather; do
    "$program" train run.yaml --json --set "mesh.cp=${CP:-4}" --set mesh.keys=$keys --set out=$keys >$keys.log
done
python3 - <<'PY'
import json, sys

def read(name):
    rows = [json.loads(line) for line in open(name + ".log")]
    start = next(r for r in rows if r["event"] == "start")
    return start, [r for r in rows if r["event"] == "step"]

want = read("one")[1]
bad = False
print(f"{'':8} {'ranks':>5} {'activations':>14} {'last loss':>12} {'off by':>9} {'s a step':>9}")
for name in "one", "ring", "gather":
    start, steps = read(name)
    off = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(steps, want))
    bad |= off > 1e-4 or len(steps) != len(want)
    print(f"{name:8} {start['ranks']:5} {start['ledger']['activations'] / 2**20:10.1f} MiB {steps[-1]['loss']:12.7f} "
          f"{off:9.1e} {steps[-1]['ms'] / 1000:9.2f}")
sys.exit(bad)
PY

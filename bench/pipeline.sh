#!/bin/sh
# pipeline.sh [TEXT] -- a pipeline of two ranks with one thread each (mesh.pp: 2, 8 micro-batches) against one rank with
# two threads: the same model of 10M parameters, the same batches. TEXT: ../shared/data/text/tinyshakespeare.txt.
# The ideal of a pipeline is the speed of one rank with two threads, less the bubble of its schedule, for stages as they
# were cut (`lineshaft plan schedule`); asked for are 90 % of it. Runs take turns, and each side's best median counts.
#   STEPS=12  TURNS=3  SCHEDULES="gpipe 1f1b interleaved zero-bubble"  REDUCE=fast  LAYERS=6  WIDTH=384
set -eu
here=$(dirname "$0")
text=$(realpath "${1:-$here/../../shared/data/text/tinyshakespeare.txt}")
cd "$here/.."
make --no-print-directory build/release/lineshaft >/dev/null
program=$PWD/build/release/lineshaft
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >run.yaml <<YAML
name: pipeline
model: {family: gpt2, layers: ${LAYERS:-6}, width: ${WIDTH:-384}, heads: 6, context: 256}
data: {text: [$text], tokenizer: bytes, validation: 5%}
batch: {sequences: 8, leaf: 1, group: 1}
train: {steps: ${STEPS:-12}, lr: 1e-3, reduce: ${REDUCE:-fast}}
checkpoint: {every: 0}
eval: {every: 0, sequences: 1, sample: ""}
YAML
schedules=${SCHEDULES:-gpipe 1f1b interleaved zero-bubble}
# side NAME WORD...: a run with these settings; its tokens/s to NAME.speed, one a line.
side() {
    name=$1
    shift
    "$program" train run.yaml --json --set "out=$name" --fresh "$@" >"$name.log" 2>"$name.err" || {
        cat "$name.err" >&2
        exit 1
    }
    sed -n 's/.*"event":"step".*"tokens_per_s":\([0-9.e+]*\).*/\1/p' "$name.log" >>"$name.speed"
}
turn=0
while [ "$turn" -lt "${TURNS:-3}" ]; do
    side one --set device.threads=2
    for kind in $schedules; do
        side "$kind" --set device.threads=1 --set mesh.pp=2 --set "mesh.schedule=$kind"
    done
    turn=$((turn + 1))
done
for kind in $schedules; do
    "$program" plan schedule run.yaml --set mesh.pp=2 --set "mesh.schedule=$kind" --json >"$kind.plan"
done
# shellcheck disable=SC2086 # words are what is wanted
STEPS=${STEPS:-12} python3 - $schedules <<'PY'
import json, os, statistics, sys

def best(name):
    """The best of the turns' medians, without the first two steps of each."""
    speeds = [float(line) for line in open(name + ".speed")]
    steps = int(os.environ["STEPS"])
    return max(statistics.median(speeds[i + 2 : i + steps]) for i in range(0, len(speeds), steps))

one = best("one")
print(f"one rank, 2 threads: {one:.0f} tokens/s")
for kind in sys.argv[1:]:
    bubble = json.load(open(kind + ".plan"))["bubble"]
    got, ideal = best(kind), one * (1 - bubble)
    print(f"2 ranks x 1 thread, {kind:11}: {got:.0f} tokens/s; bubble {bubble:.1%}, ideal {ideal:.0f}: {got / ideal:.1%} of it")
PY

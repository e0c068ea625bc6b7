#!/bin/sh
# ckpt.sh [ROUNDS] -- checkpoints of a model of 124 M parameters (1.5 GB with moments) beside dd, in turn, ROUNDS times (default 3):
#
#   write   dd conv=fsync of as many bytes      a save (at the end of one step; the event tells its seconds and bytes)
#   read    dd of the saved objects             ckpt verify, which reads and checks every byte; caches dropped before, where that is allowed
#   delay   the steps of a run with checkpoint.every: the step after a save against the median of those that no save touches,
#           and what the next update waited for the copy
#   again   a second save with most layers frozen: bytes written and reused
#
# DIR=FOLDER (default: a new one in /tmp) decides which disk is measured; it takes some 10 GB. STEPS=13 EVERY=4 TOKENS=256 change the run
# of `delay`, BUSY=1 does not wait for a quiet machine.
set -eu
cd "$(dirname "$0")/.."
rounds=${1:-3}
make --no-print-directory build/release/lineshaft >/dev/null
[ -n "${BUSY:-}" ] || sh bench/quiet.sh
dir=$(mktemp -d "${DIR:-/tmp}/ckpt.XXXXXX")
trap 'rm -rf "$dir"' EXIT
ls=build/release/lineshaft

cat >"$dir/run.yaml" <<YAML
name: ckpt-124m
model: {family: gpt2, layers: 12, width: 768, heads: 12, context: ${TOKENS:-256}, vocab: 50257}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 2, leaf: 1}
train: {steps: 1, lr: 1e-4, schedule: constant, warmup: 1, seed: 1, reduce: fast}
checkpoint: {every: 0, keep: 3}
eval: {every: 0, sequences: 1}
YAML

drop() {
    sync
    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || echo "caches stay: not allowed to drop them" >&2
}
now() { date +%s.%N; }
since() { echo "$1 $(now)" | awk '{print $2 - $1}'; }

i=0
while [ $i -lt "$rounds" ]; do
    rm -rf "$dir/run" "$dir/dd"
    $ls train "$dir/run.yaml" --json --set out="$dir/run" >"$dir/save.$i"
    [ -e "$dir/blob" ] || cat "$dir"/run/checkpoints/objects/*/*.safetensors >"$dir/blob"
    cat "$dir/blob" >/dev/null
    begun=$(now)
    dd if="$dir/blob" of="$dir/dd" bs=16M conv=fsync 2>/dev/null
    since "$begun" >"$dir/dd.$i"
    rm "$dir/dd"
    drop
    begun=$(now)
    $ls ckpt verify "$dir/run" >/dev/null
    since "$begun" >"$dir/verify.$i"
    drop
    begun=$(now)
    for file in "$dir"/run/checkpoints/objects/*/*.safetensors; do dd if="$file" of=/dev/null bs=16M 2>/dev/null; done
    since "$begun" >"$dir/read.$i"
    rm -rf "$dir/run"
    $ls train "$dir/run.yaml" --json --set out="$dir/run" --set train.steps="${STEPS:-13}" --set checkpoint.every="${EVERY:-4}" >"$dir/delay.$i"
    i=$((i + 1))
done
rm -rf "$dir/run"
$ls train "$dir/run.yaml" --json --set out="$dir/run" --set train.steps=2 --set checkpoint.every=1 \
    --set 'train.freeze=["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.?.*", "transformer.h.10.*"]' >"$dir/again"

python3 - "$dir" "$rounds" "${EVERY:-4}" <<'PY'
import json, statistics, sys
dir, rounds, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
events = lambda name: [json.loads(line) for line in open(f"{dir}/{name}") if line.startswith("{")]
number = lambda name: float(open(f"{dir}/{name}").read())
write, read, delays, waits = [], [], [], []
for i in range(rounds):
    saved = [e for e in events(f"save.{i}") if e["event"] == "checkpoint"][-1]
    gb = saved["bytes_written"] / 1e9
    write.append(100 * number(f"dd.{i}") / saved["seconds"])
    read.append(100 * number(f"read.{i}") / number(f"verify.{i}"))
    print(f"round {i + 1}: {gb:.2f} GB  save {gb / saved['seconds']:.2f} GB/s, dd {gb / number(f'dd.{i}'):.2f};"
          f"  verify {gb / number(f'verify.{i}'):.2f} GB/s, dd {gb / number(f'read.{i}'):.2f}")
    steps = {e["step"]: e for e in events(f"delay.{i}") if e["event"] == "step"}
    ended = {e["step"]: e["seconds"] for e in events(f"delay.{i}") if e["event"] == "checkpoint"}
    calm = statistics.median(e["ms"] for s, e in steps.items() if s > 2 and s % every not in (0, 1, 2))
    for s in ended:
        if s + 1 in steps:
            after = steps[s + 1]
            delays.append(100 * (after["ms"] / calm - 1))
            waits.append(after["split"]["checkpoint"])
            print(f"         step {s + 1}, after a save: {after['ms']:.0f} ms, calm steps {calm:.0f} ms; update waited {after['split']['checkpoint']:.1f} ms")
again = [e for e in events("again") if e["event"] == "checkpoint"]
print(f"save: median {statistics.median(write):.0f} % of dd with fsync (must be >= 80)")
print(f"load: median {statistics.median(read):.0f} % of dd (must be >= 80)")
print(f"step after a save: median {statistics.median(delays):+.1f} % (must be < 5); update waited {statistics.median(waits):.1f} ms for the copy")
print("second save with frozen layers: " + ", ".join(f"step {e['step']} wrote {e['bytes_written'] / 1e6:.0f} MB, reused {e['bytes_reused'] / 1e6:.0f} MB" for e in again))
PY

#!/bin/sh
# lora_checkpoint.sh -- a second checkpoint of a run with frozen weights (lora.rank, train.freeze) writes what has changed, on every mesh;
# the run resumes to the same bits. (old_runs.sh goes on from a checkpoint of 0.1.0, which has both in one object.)
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >base.yaml <<'YAML'
name: base
model: {family: llama, layers: 2, width: 64, heads: 4, kv_heads: 4, context: 16, mlp: 128}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 1, group: 1}
train: {steps: 4, lr: 3e-3, schedule: constant, warmup: 0, seed: 3}
checkpoint: {every: 1, keep: 4}
eval: {every: 0, sequences: 2}
YAML
run 0 "$LINESHAFT" train base.yaml --json --set train.steps=1 --set out=base
run 0 "$LINESHAFT" export base hf
sed 's/^model:.*/model: {import: hf, context: 16}/;s/^train:/lora: {rank: 2, targets: [q_proj]}\n&/' base.yaml >lora.yaml
sed 's/^train: {/&freeze: ["*embed*", "*_proj*"], /' base.yaml >frozen.yaml

# reuses NAME LIMIT: each save but the first of the run wrote fewer bytes than LIMIT, and left the frozen weights as they were.
reuses() {
    python3 - "$1" "$2" <<'PY' || fail "$1 writes frozen weights again: $(grep '"event":"checkpoint"' out)"
import json, sys
saves = [e for e in map(json.loads, open("out")) if e["event"] == "checkpoint"]
assert len(saves) >= 3, saves
for e in saves[1:]:
    assert e["bytes_written"] < int(sys.argv[2]) and e["bytes_reused"] > 300000, e
PY
}
for file in lora,16000 frozen,28000; do
    for mesh in 1 2 2,mesh.tp=2 2,mesh.pp=2; do
        set="$(echo "$mesh" | cut -s -d , -f 2)"
        # shellcheck disable=SC2086 # a word or none
        run 0 "$LINESHAFT" train "${file%,*}.yaml" --json -n "${mesh%%,*}" ${set:+--set $set} --set "out=${file%,*}.$mesh"
        reuses "${file%,*} on $mesh" "${file#*,}"
        run 0 "$LINESHAFT" ckpt verify "${file%,*}.$mesh"
    done
done
field summary weights_hash frozen.1/events.jsonl >want
run 0 "$LINESHAFT" train frozen.yaml --json -n 2 --set train.steps=2 --set out=again
run 0 "$LINESHAFT" train frozen.yaml --json --set out=again
field summary weights_hash >got
cmp -s want got || fail "a resumed run has other bits"

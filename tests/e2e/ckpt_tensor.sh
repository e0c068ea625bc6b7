#!/bin/sh
# ckpt_tensor.sh -- checkpoints of ranks that hold one model between them (mesh.tp, mesh.ep, pipelines of tp groups) or divide it in groups: each writes
# and reads about as much as the others, what is stored is what the first rank would have collected, any mesh goes on with it, and
# what kills, fails and flips leaves behind is whole.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >run.yaml <<'YAML'
name: tensor
model: {family: gpt2, layers: 2, width: 96, heads: 4, context: 16}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 1, group: 1}
train: {steps: 6, lr: 3e-3, schedule: constant, warmup: 2, seed: 3}
device: {threads: 1}
checkpoint: {every: 2, keep: 9}
eval: {every: 0, sequences: 2, sample: ""}
YAML
sed 's/^model:.*/model: {family: mixtral, layers: 2, width: 64, heads: 4, kv_heads: 2, context: 16, mlp: 72, experts: 4, experts_used: 2}/' \
    run.yaml >experts.yaml
sed 's/^model:.*/model: {family: qwen3, layers: 2, width: 64, heads: 4, kv_heads: 2, context: 16}/' run.yaml >shared.yaml

# ends FILE FOLDER ARGS...: a copy of the folder is gone on with to the end; its hash. With `fault` set the first rank loads and saves.
fault=
ends() {
    file=$1 folder=$2
    shift 2
    rm -rf went
    cp -r "$folder" went
    run 0 env ${fault:+LINESHAFT_FAULT=$fault} "$LINESHAFT" train "$file" --json --set out=went --set checkpoint.every=0 "$@"
    [ "$(field start first_step)" = 4 ] || fail "$folder $*: not gone on"
    field summary weights_hash >ended
}
# same WHAT: it ended with the weights in want.
same() {
    cmp -s ended want || fail "$*: other weights"
}
# written MOST: all ranks of the last run have written, none more than MOST times an equal share; the stored weights are those of the run.
written() {
    python3 - "$1" "$folder" <<'PY' || fail "$folder: $(grep '"checkpoint"' out)"
import json, sys
rows = [json.loads(line) for line in open("out")]
ranks = [row for row in rows if row["event"] == "start"][0]["ranks"]
saves = [row for row in rows if row["event"] == "checkpoint"]
assert [row["step"] for row in saves] == [2, 4]
for row in saves:
    assert row["writers"] == ranks
    assert row["most_bytes"] * ranks <= float(sys.argv[1]) * (row["bytes_written"] + row["bytes_reused"])
manifest = json.load(open("%s/checkpoints/step-0000000004.json" % sys.argv[2]))
assert manifest["weights_hash"] == rows[-1]["weights_hash"]
PY
}
# each MOST FILE FOLDER ARGS...: 4 steps, saved by all ranks, and by the first alone: the same tensors. Then loaded by all, and by the
# first alone: the same end.
each() {
    most=$1 file=$2 folder=$3
    shift 3
    run 0 "$LINESHAFT" train "$file" --json --set train.steps=4 --set out="$folder" "$@"
    [ ! -s err ] || fail "$folder says: $(cat err)"
    written "$most"
    run 0 env LINESHAFT_FAULT=train.blind@1 "$LINESHAFT" train "$file" --json --set train.steps=4 --set out="$folder.one" "$@"
    grep -q "do not see \"$folder.one\"" err || fail "the first rank does not collect: $(cat err)"
    run 0 "$LINESHAFT" ckpt verify "$folder"
    run 0 "$LINESHAFT" ckpt diff "$folder" "$folder.one" --json
    says '"changes":[],"same":'
    fault=train.blind@1
    ends "$file" "$folder" "$@"
    cp ended want
    fault=
    ends "$file" "$folder.one" "$@"
    same "$folder, loaded by all"
}

each 1.2 run.yaml two -n 4 --set mesh.tp=2
for kind in param adam.m adam.v; do # columns of the second rank
    grep "attn.c_attn.weight\",\"kind\":\"$kind\"" two/checkpoints/step-0000000004.json | grep -q '"offset":\[0,48\]' ||
        fail "no box of columns: $(grep c_attn.weight two/checkpoints/step-0000000004.json)"
done
each 1.2 run.yaml zero -n 4 --set mesh.tp=2 --set mesh.zero=3
each 1.6 run.yaml pipelines -n 4 --set mesh.tp=2 --set mesh.pp=2 # stages have whole layers
each 1.2 shared.yaml shared -n 4 --set mesh.tp=4
each 1.2 experts.yaml experts -n 4 --set mesh.ep=2
each 1.2 run.yaml groups -n 4 --set mesh.zero=3 --set mesh.shard=2 --set mesh.bucket=64KiB

# Gone on with by 1, 2, 3 and 4 ranks that divide in other ways: in ordered mode the bits of one process.
ends run.yaml two
cp ended want
for mix in "-n 2 --set mesh.zero=1" "-n 3 --set mesh.zero=3" "-n 4 --set mesh.zero=2 --set mesh.shard=2" "-n 4 --set mesh.pp=2 --set mesh.zero=1"; do
    # shellcheck disable=SC2086 # words are what is wanted
    ends run.yaml two $mix
    same "$mix"
done
ends experts.yaml experts
cp ended want
ends experts.yaml experts -n 2 --set mesh.zero=1
same "experts by 2 ranks"
run 0 "$LINESHAFT" export experts hf
run 0 "$LINESHAFT" generate pipelines -p Once -n 4

# Nobody reads more than it needs: its own part in the mesh that saved, half of it all as one of two.
run 0 "$LINESHAFT" ckpt list two --step 4 --json
all=$(sed 's/.*"bytes":\([0-9]*\).*/\1/' out)
ends run.yaml two -n 2 --set mesh.tp=2
[ "$(field start loaded_most_bytes)" -lt $((all * 3 / 5)) ] || fail "one of 2 ranks read $(field start loaded_most_bytes) of $all bytes"
ends run.yaml two -n 4 --set mesh.tp=2
[ "$(field start loaded_most_bytes)" -lt $((all * 2 / 5)) ] || fail "one of 4 ranks read $(field start loaded_most_bytes) of $all bytes"
cp ended want

# Killed in a save: at objects (every rank at its own), before the manifest and in its rename. What was there is whole.
for point in ckpt.object.link@3 ckpt.manifest.sync@1 ckpt.manifest.rename@1; do
    rm -rf killed
    cp -r two killed
    LINESHAFT_FAULT=$point=kill "$LINESHAFT" train run.yaml --json -n 4 --set mesh.tp=2 --set heal.mode=off --set out=killed >out 2>err &&
        fail "$point: not killed"
    run 0 "$LINESHAFT" ckpt verify killed
    [ ! -e killed/checkpoints/step-0000000006.json ] || fail "$point: committed"
done
ends run.yaml killed -n 4 --set mesh.tp=2
same "after a kill"

# One rank cannot write: said once, training goes on, the next save is whole.
run 0 env LINESHAFT_FAULT=train.part.3@1 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.tp=2 --set out=part
grep -q 'checkpoint of step 2 was not saved: rank 3: cannot write a part' err || fail "not said: $(cat err)"
[ ! -e part/checkpoints/step-0000000002.json ] || fail "committed without a part"
run 0 "$LINESHAFT" ckpt verify part
# A weight of one of two ranks that have the same part, or the same layers, is flipped: found before anything is committed.
for axis in tp pp; do
    run 7 env LINESHAFT_FAULT=train.flip.3@1 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.$axis=2 --set train.steps=3 --set heal.compare=0 \
        --set out=flip.$axis
    grep -q 'step 2 was not saved: replicas differ: tensor' err || fail "$axis: not found: $(cat err)"
    [ ! -e flip.$axis/checkpoints/step-0000000002.json ] || fail "$axis: committed although replicas differ"
done
# What did not change is not written again, by any rank.
run 0 "$LINESHAFT" train shared.yaml --json -n 4 --set mesh.tp=2 --set train.steps=4 --set train.lr=1e-30 --set train.weight_decay=0 --set out=still
[ "$(field checkpoint bytes_reused)" -gt 0 ] || fail "weights that did not change are written again: $(grep '"checkpoint"' out)"

# A damaged object is healed from a copy by the rank that needs it; without one all go back together.
run 0 "$LINESHAFT" ckpt copy two mirror
object=$(grep -o '"object":"[0-9a-f]*"' two/checkpoints/step-0000000004.json | tail -n 1 | cut -d'"' -f4)
file=two/checkpoints/objects/$(echo "$object" | cut -c1-2)/$object.safetensors
printf 'x' | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - 9)) conv=notrunc 2>/dev/null
ends run.yaml two -n 4 --set mesh.tp=2 --set checkpoint.mirror=mirror
grep -q 'healed from "mirror"' err || fail "not healed: $(cat err)"
same "healed"
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.tp=2 --set out=two --set checkpoint.every=0
grep -q 'checkpoint of step 4 is damaged.*going back to step 2 costs 2 steps' err || fail "not told: $(cat err)"
field summary weights_hash >ended
same "gone back"
exit 0

#!/bin/sh
# ckpt_sharded.sh -- checkpoints that ranks write together: whole, the same for every mesh, killed at any point, damaged, refused where
# replicas differ; and collected by the first rank where others do not see the folder.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
name: shards
model: {family: gpt2, layers: 1, width: 64, heads: 2, context: 32}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 2, group: 1}
train: {steps: 6, lr: 3e-3, schedule: constant, warmup: 2, seed: 3}
checkpoint: {every: 2, keep: 9}
eval: {every: 0}
YAML

run 0 "$LINESHAFT" train run.yaml --json --set out=one --set checkpoint.every=0
want=$(field summary weights_hash)
# goes_on FOLDER ARGS...: resumed, it ends with the weights of one process.
goes_on() {
    folder=$1
    shift
    run 0 "$LINESHAFT" train run.yaml --json --set out="$folder" --set checkpoint.every=0 "$@"
    [ "$(field summary weights_hash)" = "$want" ] || fail "$folder $*: other weights"
}

# Saved by 3, gone on by 2, and the other way round; each kind of state in parts of several ranks.
for zero in 0 1 3; do
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set mesh.zero=$zero --set mesh.bucket=64KiB --set train.steps=4 --set out=z$zero
    [ "$(grep -c '"event":"checkpoint"' out)" = 2 ] || fail "zero $zero: not 2 checkpoints"
    run 0 "$LINESHAFT" ckpt verify z$zero
    for kind in param adam.m adam.v; do
        # a border between two ranks cuts some tensor
        grep "\"kind\":\"$kind\"" z$zero/checkpoints/step-0000000004.json | grep -q 'offset.*offset' || fail "zero $zero: $kind is not cut"
    done
    cp -r z$zero z$zero.copy
    goes_on z$zero -n 2 --set mesh.zero=2
    goes_on z$zero.copy
done

# Saved by 4, gone on by 1, 2, 3 and 8 with other divisions of the state. Each reads its part; the more there are, the less.
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.zero=1 --set mesh.bucket=64KiB --set train.steps=4 --set out=four
run 0 "$LINESHAFT" ckpt list four --step 4 --json
all=$(sed 's/.*"bytes":\([0-9]*\).*/\1/' out)
for mix in 1:0 2:3 3:2 8:1; do
    cp -r four four.$mix
    goes_on four.$mix -n ${mix%:*} --set mesh.zero=${mix#*:} --set mesh.bucket=128KiB
    loaded=$(field start loaded_bytes)
    [ "$(field start first_step)" = 4 ] || fail "$mix: not gone on"
    [ $mix != 1:0 ] || [ "$loaded" = "$all" ] || fail "one rank read $loaded of $all bytes"
    [ $mix != 8:1 ] || [ "$loaded" -lt $((all / 2)) ] || fail "one of 8 ranks read $loaded of $all bytes"
done

# Killed: at objects (every rank at its own), before the manifest and in its rename. What was there is whole.
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set train.steps=2 --set checkpoint.every=0 --set out=two
for point in ckpt.object.link@4 ckpt.manifest.sync@1 ckpt.manifest.rename@1; do
    rm -rf killed
    cp -r two killed
    LINESHAFT_FAULT=$point=kill "$LINESHAFT" train run.yaml --json -n 2 --set mesh.zero=1 --set heal.mode=off --set out=killed >out 2>err && fail "$point: not killed"
    run 0 "$LINESHAFT" ckpt verify killed
    [ "$(ls killed/checkpoints/step-*)" = killed/checkpoints/step-0000000002.json ] || fail "$point: $(ls killed/checkpoints)"
    goes_on killed -n 3
done

# One rank cannot write: said once, training goes on, the next save is whole.
run 0 env LINESHAFT_FAULT=train.part.1@1 "$LINESHAFT" train run.yaml --json -n 2 --set out=part
grep -q 'checkpoint of step 2 was not saved: rank 1: cannot write a part' err || fail "not said: $(cat err)"
[ "$(field summary weights_hash)" = "$want" ] || fail "a failed part changed the weights"
run 0 "$LINESHAFT" ckpt verify part
[ ! -e part/checkpoints/step-0000000002.json ] || fail "committed without a part"

# A weight of one replica is flipped: found before anything is committed; the last save ends the run.
run 7 env LINESHAFT_FAULT=train.flip.1@1 "$LINESHAFT" train run.yaml --json -n 2 --set train.steps=3 --set heal.compare=0 --set out=flip
grep -q 'step 2 was not saved: replicas differ: tensor' err || fail "not found: $(cat err)"
[ ! -e flip/checkpoints/step-0000000002.json ] || fail "committed although replicas differ"

# A rank that does not see the folder: the first one collects.
for zero in 0 2; do
    run 0 env LINESHAFT_FAULT=train.blind@1 "$LINESHAFT" train run.yaml --json -n 2 --set mesh.zero=$zero --set train.steps=4 --set out=blind$zero
    grep -q 'do not see "blind' err || fail "not said: $(cat err)"
    run 0 "$LINESHAFT" ckpt verify blind$zero
    goes_on blind$zero -n 2 --set mesh.zero=1
done

# Damage in a part of another rank: all go back together, and the cost is told.
object=$(grep -o '"object":"[0-9a-f]*"' z0.copy/checkpoints/step-0000000006.json | tail -n 1 | cut -d'"' -f4)
file=z0.copy/checkpoints/objects/$(echo "$object" | cut -c1-2)/$object.safetensors
size=$(wc -c <"$file")
printf 'x' | dd of="$file" bs=1 seek=$((size - 9)) conv=notrunc 2>/dev/null
rm z0.copy/checkpoints/step-000000000[24].json
cp z0/checkpoints/step-0000000004.json z0.copy/checkpoints/
cp -r z0/checkpoints/objects z0.copy/checkpoints/more && cp -rn z0.copy/checkpoints/more/* z0.copy/checkpoints/objects/
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set out=z0.copy --set checkpoint.every=0
grep -q 'checkpoint of step 6 is damaged.*going back to step 4 costs 2 steps' err || fail "not told: $(cat err)"
[ "$(field summary weights_hash)" = "$want" ] || fail "gone back: other weights"
exit 0

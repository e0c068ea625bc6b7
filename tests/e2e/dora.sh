#!/bin/sh
# dora.sh -- DoRA (lora.dora) on every mesh that has it: the bits, or the losses, of one process; checkpoints, text, and what goes out;
# and where it cannot be.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
rest='data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 1, group: 1}
checkpoint: {every: 0}'
cat >base.yaml <<YAML
name: base
model: {family: qwen2, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 24, tied: false}
$rest
train: {steps: 20, lr: 1e-2}
eval: {every: 0}
YAML
cat >dora.yaml <<YAML
name: dora
model: {import: hf}
lora: {rank: 4, dora: true}
$rest
train: {steps: 8, lr: 1e-2, schedule: constant, warmup: 0}
eval: {every: 4, sequences: 3, sample: "Once", sample_tokens: 6}
YAML
run 0 "$LINESHAFT" train base.yaml
run 0 "$LINESHAFT" export runs/base hf
run 0 "$LINESHAFT" train dora.yaml --json --set out=one
curve >want
hash=$(field summary weights_hash)
trained=$(field start trained)
run 0 "$LINESHAFT" train dora.yaml --json --set lora.dora=false --set out=lora
curve >without
cmp -s want without && fail "lengths change nothing"
[ "$(head -n 1 want)" = "$(head -n 1 without)" ] || fail "DoRA does not begin as the base model: $(head -n 1 want), LoRA $(head -n 1 without)"
# A length for each output of the adapted layers: q, k and v, o, gate and up, down, in each of 2 layers.
[ $((trained - $(field start trained))) = $((2 * (32 + 2 * 16 + 32 + 2 * $(python3 -c 'import json; print(json.load(open("hf/config.json"))["intermediate_size"])') + 32))) ] ||
    fail "DoRA trains $trained numbers, LoRA $(field start trained)"

# Ordered: the bits of one process on any dp and pp, by threads, recomputation and calls; nearly its losses with cp.
same() {
    run 0 "$LINESHAFT" train dora.yaml --json --set out=other "$@"
    [ "$(field summary weights_hash)" = "$hash" ] || fail "other bits: $*"
    grep -q '"event":"sample"' out || fail "no sample: $*"
    rm -rf other
}
same -n 2
same -n 3
same --set mesh.pp=2
same -n 4 --set mesh.pp=2
same --set mesh.pp=2 --set mesh.schedule=zero-bubble
same --set train.recompute=full
same --set train.recompute=selective
same --set batch.group=4
same --set device.threads=3
same --set device.isa=generic
run 0 "$LINESHAFT" train dora.yaml --json --set mesh.cp=2 --set out=cp
curve >got
alike "mesh.cp: 2" 9 want got
run 0 "$LINESHAFT" train dora.yaml --json --set precision=bf16 --set out=half
curve >got
alike "precision: bf16" 9 want got 2e-2

# Stopped after 3 steps, on another mesh.
run 0 "$LINESHAFT" train dora.yaml --json --set train.steps=3 --set out=moved -n 2
run 0 "$LINESHAFT" train dora.yaml --json --set out=moved --set mesh.pp=2
[ "$(field start first_step) $(field summary weights_hash)" = "3 $hash" ] || fail "it does not go on to the same weights"
run 0 "$LINESHAFT" ckpt verify moved

# Out: the whole model, the adapter, and the adapter merged again: the same logits, and the same text.
run 0 "$LINESHAFT" export one whole
says 'fingerprint  verified'
run 0 "$LINESHAFT" export one adapter --adapter
grep -q '"use_dora": true' adapter/adapter_config.json || fail "the adapter does not say what it is"
run 0 "$LINESHAFT" merge adapter merged
for model in one whole merged; do
    run 0 "$LINESHAFT" generate $model --prompt "Once upon" --tokens 16 --temperature 0
    cp out text-$model
    cmp -s text-one text-$model || fail "$model tells $(cat out), the run $(cat text-one)"
done

# What cannot be.
refused 'lora.dora is true but mesh.tp is 2' dora.yaml --set mesh.tp=2
refused 'lora.dora is true but device.kind is cuda' dora.yaml --set device.kind=cuda
refused 'lora.dora is true but lora.rank is 0' base.yaml --set lora.dora=true
exit 0

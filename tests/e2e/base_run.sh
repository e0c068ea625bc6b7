#!/bin/sh
# model.import of a run: its weights, its tokenizer and its chat template, without an export between.
. "$LINESHAFT_ROOT/tests/lib.sh"

lineage() { # lineage RUN: of its newest checkpoint
    "$LINESHAFT" ckpt list "$1" --json |
        python3 -IS -c 'import json, sys; print(json.load(sys.stdin)["checkpoints"][-1]["lineage"])'
}
hash() { # hash PATH: of the weights of its newest checkpoint
    "$LINESHAFT" ckpt list "$1" --json |
        python3 -IS -c 'import json, sys; print(json.load(sys.stdin)["checkpoints"][-1]["weights_hash"])'
}
cat >base.yaml <<'YAML'
model: {family: llama, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 64}
data: {text: [builtin:stories:64K], tokenizer: tok}
batch: {sequences: 8, leaf: 2}
train: {steps: 20, lr: 1e-2}
eval: {every: 10, sequences: 8}
checkpoint: {every: 10, best: true}
YAML
cat >tune.yaml <<'YAML'
model: {import: base}
data: {text: [builtin:stories:16K]}
batch: {sequences: 8, leaf: 2}
train: {steps: 6, lr: 1e-3}
eval: {every: 0}
checkpoint: {every: 3}
YAML
run 0 "$LINESHAFT" data tokenizer --train builtin:stories:64K --vocab 300 -o tok \
    --special "<|endoftext|>" --special "<|im_start|>" --special "<|im_end|>"
run 0 "$LINESHAFT" train base.yaml --set out=base
mv tok gone # what the base keeps of its tokenizer is enough

# The model, its size and its tokenizer come from the base: a step of rate 0 changes nothing.
run 0 "$LINESHAFT" config explain tune.yaml model data.tokenizer
says "the run in base"
says "base/tokenizer"
run 0 "$LINESHAFT" train tune.yaml --set out=same --set train.steps=1 --set train.lr=1e-30 --set train.weight_decay=0
[ "$(hash same)" = "$(hash base)" ] || fail "the weights are not those of the base"
[ "$(lineage same)" = "from base, step 20, weights $(hash base)" ] || fail "lineage: $(lineage same)"

# The same as by way of an export.
run 0 "$LINESHAFT" export base hf
run 0 "$LINESHAFT" train tune.yaml --json --set out=by-hf --set model.import=hf
want=$(field summary weights_hash)
run 0 "$LINESHAFT" train tune.yaml --json --set out=tuned
[ "$(field summary weights_hash)" = "$want" ] || fail "by way of an export it is another model"
run 0 "$LINESHAFT" generate tuned -p Once -n 4
run 0 "$LINESHAFT" export tuned hf-tuned

# On meshes; by all names of a checkpoint; with a shorter context.
for mesh in "-n 2 --set mesh.zero=3" "--set mesh.pp=2"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train tune.yaml --json --set out="m$mesh" $mesh
    [ "$(field summary weights_hash)" = "$want" ] || fail "other weights with $mesh"
done
# shellcheck disable=SC2043
for mesh in "--set mesh.tp=2"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train tune.yaml --set out="m$mesh" $mesh
done
run 2 "$LINESHAFT" train tune.yaml --set model.import=base/checkpoints/step-0000000007.json --set out=none
says 'model.import: there is no checkpoint of step 7 in "base/checkpoints"'
run 2 "$LINESHAFT" train tune.yaml --set model.import=tuned/best --set out=none
says 'no checkpoint in "tuned/checkpoints" is marked as the best'
for name in base/best base/checkpoints base/checkpoints/step-0000000010.json; do
    run 0 "$LINESHAFT" train tune.yaml --set out=named --fresh --set model.import=$name
done
lineage named | grep -q "from base/checkpoints/step-0000000010.json, step 10, " || fail "lineage: $(lineage named)"
run 0 "$LINESHAFT" train tune.yaml --set out=short --set model.context=16

# A chain; and a base that is gone when its run goes on.
run 0 "$LINESHAFT" train tune.yaml --set out=second --set model.import=tuned
mv base moved
run 0 "$LINESHAFT" train tune.yaml --json --set out=tuned --set train.steps=9
[ "$(field start first_step)" = 6 ] || fail "without its base it begins at step $(field start first_step)"
lineage tuned | grep -q "from base, step 20, " || fail "it forgets its base: $(lineage tuned)"
run 2 "$LINESHAFT" train tune.yaml --set out=fresh
says 'model.import: there is no "base"'
mv moved base

# Chat: the base's template is what auto means.
python3 -IS - <<'PY'
import json
with open("chat.jsonl", "w") as f:
    for _ in range(40):
        print(json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}), file=f)
PY
run 0 "$LINESHAFT" train tune.yaml --set out=chat --set 'data.text=[chat.jsonl]' --set data.template=chatml
run 0 "$LINESHAFT" config explain tune.yaml --set model.import=chat --set 'data.text=[chat.jsonl]' --set data.template=auto data.template
says chatml
run 0 "$LINESHAFT" train tune.yaml --set out=more --set model.import=chat --set 'data.text=[chat.jsonl]' --set data.template=auto
run 0 "$LINESHAFT" generate more --chat -p Hi -n 4 --temperature 0

# Adapters beside a base; adapters of a base are refused, with the way to merge them.
run 0 "$LINESHAFT" train tune.yaml --set out=lora --set lora.rank=2
run 2 "$LINESHAFT" train tune.yaml --set out=no --set model.import=lora
says "was trained with LoRA"
says "lineshaft export lora FOLDER"
run 0 "$LINESHAFT" export lora merged
run 2 "$LINESHAFT" export lora adapter --adapter
says 'belongs to the run "base", which peft cannot load'
run 0 "$LINESHAFT" export lora adapter --adapter --base hf
run 0 "$LINESHAFT" train tune.yaml --set out=yes --set model.import=merged

# What cannot be a base.
run 2 "$LINESHAFT" train tune.yaml --set out=no --set model.layers=3
says "model.layers is 3 but the imported model has 2 (the run in base)"
mkdir -p nothing
run 2 "$LINESHAFT" train tune.yaml --set out=no --set model.import=nothing
says 'there is no model in "nothing"'
run 2 "$LINESHAFT" train tune.yaml --set out=no --set model.import=nothing/best
[ ! -e no ] || fail "a refused run left a folder"

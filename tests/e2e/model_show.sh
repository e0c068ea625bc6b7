#!/bin/sh
# What a model is made of, by name; and what config check finds before a run would.
. "$LINESHAFT_ROOT/tests/lib.sh"
cat >run.yaml <<'YAML'
name: base
model: {family: llama, layers: 1, width: 16, heads: 2, kv_heads: 1, context: 16, vocab: 300}
data: {text: [builtin:stories], validation: 5%}
batch: {sequences: 2, leaf: 2}
train: {steps: 2, lr: 1e-2, freeze: ["model.embed_tokens.*"]}
eval: {every: 0}
YAML
run 0 "$LINESHAFT" config check run.yaml
says "is valid: llama, 1 layer"
run 0 "$LINESHAFT" train run.yaml
says "of them trained"
run 0 "$LINESHAFT" ckpt show runs/base
says "300 x 16  frozen   model.embed_tokens.weight"
says "8 x 16           model.layers.0.self_attn.k_proj.weight"
run 0 "$LINESHAFT" ckpt show runs/base --json
says '{"name":"model.norm.weight","shape":[16],"parameters":16,"trained":true}'
run 0 "$LINESHAFT" export runs/base hf
run 0 "$LINESHAFT" ckpt show hf
says "llama, "
run 2 "$LINESHAFT" ckpt show .
says "Give a Hugging Face folder"

# Mistakes are found before the run.
cat >tune.yaml <<'YAML'
name: tune
model: {import: hf, context: 16}
data: {text: [builtin:stories], validation: 5%}
batch: {sequences: 2, leaf: 2}
train: {steps: 1}
eval: {every: 0}
YAML
run 0 "$LINESHAFT" config check tune.yaml
! grep -q warning err || fail "a warning without a reason"
bad() {
    run 2 "$LINESHAFT" config check tune.yaml --set "$1"
    says "$2"
}
bad "train.freeze=[none.such]" "no parameter is called"
bad lora.alpha=8 "without a rank there is no LoRA"
bad lora.targets=q_proj "without a rank there is no LoRA"
bad data.template=qwn "there is no chat template"
bad data.template=auto "no chat template of its own"
run 2 "$LINESHAFT" config check tune.yaml --set lora.rank=2 --set lora.targets=c_attn
says "this model has no layer"
run 2 "$LINESHAFT" config check run.yaml --set model.vocab=100
says "Leave model.vocab out"
run 2 "$LINESHAFT" config check run.yaml --set model.rope_factor=2
says "there is nothing to scale"
[ ! -e runs/tune ] || fail "config check made a folder"

# What can be meant, but seldom is.
run 0 "$LINESHAFT" config check tune.yaml --set model.context=64
says "was made for 16 tokens"
run 0 "$LINESHAFT" data tokenizer --train --vocab 280 -o tok builtin:stories
run 0 "$LINESHAFT" config check tune.yaml --set data.tokenizer=tok
says "is not the tokenizer of model.import"
run 0 "$LINESHAFT" config check tune.yaml --set lora.rank=0 --set lora.alpha=8 # switched off

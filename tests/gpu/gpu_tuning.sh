#!/bin/sh
# What fine-tuning adds to a step, on an NVIDIA GPU beside the CPU, fp32: preferences (DPO, ORPO, KTO), LoRA, noise on embeddings
# (NEFTune), documents that are kept apart, of a gpt2 too, whose learned positions begin again in each.
#
#   tests/gpu/gpu_tuning.sh [FOLDER]     in FOLDER, which is made (default: a new temporary one, removed)
#
# Needs a GPU and the CUDA plugin. DEVICE=cpu tries the script itself. The exit status is the number of checks that failed.
set -u
# shellcheck source=tests/gpu/checks.sh
. "$(dirname "$0")/checks.sh"
steps=8

# train NAME DEVICE FLAGS: a run in folder NAME, its events in NAME.json; says what went wrong.
train() {
    name=$1
    device=$2
    shift 2
    "$LINESHAFT" train run.yaml --json --set "out=$name" --set "device.kind=$device" "$@" >"$name.json" 2>"$name.err" && return 0
    sed 's/^/        /' "$name.err"
    return 1
}

# both NAME FLAGS: the losses of a run on the CPU and on the GPU.
both() {
    what=$1
    shift
    train "$what-cpu" cpu "$@" && train "$what-gpu" "$DEVICE" "$@" && near "$what-gpu" "$what-cpu" 1e-4
    result "$what: losses within 1e-4 of the CPU's" $?
}

write_text 2000
awk 'BEGIN { for (i = 0; i < 64; i++)
    printf "{\"prompt\": \"number %d is\", \"chosen\": \" good%s\", \"rejected\": \" bad\"}\n", i, substr("!!!!", 1, i % 5) }' >pairs.jsonl
awk 'BEGIN { for (i = 0; i < 64; i++)
    printf "{\"prompt\": \"number %d is\", \"completion\": \"%s\", \"label\": %s}\n", i, i % 2 ? " good" : " bad", i % 2 ? "true" : "false" }' >labels.jsonl
cat >run.yaml <<YAML
model: {family: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, context: 64}
data: {text: [text.txt], tokenizer: bytes, validation: 5%}
batch: {sequences: 8, leaf: 4}
train: {steps: $steps, lr: 3e-3, warmup: 2, seed: 1}
checkpoint: {every: 0}
eval: {every: 4, sequences: 8, sample: ""}
YAML
both neftune --set train.neftune=5
both documents --set data.isolate=true
both documents-of-gpt2 --set data.isolate=true --set model.family=gpt2 --set model.kv_heads=4
train base cpu
result "a base to tune" $?
sed -i 's/^model:.*/model: {import: base, context: 64}/' run.yaml
both lora --set lora.rank=4
both dpo --set train.objective=dpo --set 'data.text=[pairs.jsonl]' --set data.validation=0 --set train.lr=1e-3
both orpo --set train.objective=orpo --set 'data.text=[pairs.jsonl]' --set data.validation=0 --set train.lr=1e-3
both kto --set train.objective=kto --set 'data.text=[labels.jsonl]' --set data.validation=0 --set train.lr=1e-3
finish

#!/bin/sh
# rounding.sh -- train.rounding: stochastic: the same weights on every mesh and after a restart, others than with nearest, refused
# where nothing is rounded.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
name: rounding
model: {family: gpt2, layers: 2, width: 64, heads: 2, context: 32}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 2, group: 1}
train: {steps: 6, lr: 3e-3, schedule: constant, warmup: 2, seed: 3, rounding: stochastic}
precision: bf16
checkpoint: {every: 0}
eval: {every: 0}
YAML

# hash_of ARGS...: the weights at the end.
hash_of() {
    rm -rf run
    run 0 "$LINESHAFT" train run.yaml --json --set out=run "$@"
    field summary weights_hash
}

want=$(hash_of)
[ "$(hash_of --set train.rounding=nearest)" != "$want" ] || fail "nearest has the weights of stochastic"
[ "$(hash_of --set train.seed=4)" != "$want" ] || fail "another seed, the same weights"
[ "$(hash_of --set device.isa=generic)" = "$want" ] || fail "other weights with generic kernels"
[ "$(hash_of -n 2)" = "$want" ] || fail "2 ranks: other weights"
for zero in 1 2 3; do
    [ "$(hash_of -n 3 --set mesh.zero=$zero --set mesh.bucket=64KiB)" = "$want" ] || fail "zero $zero: other weights"
done
[ "$(hash_of -n 2 --set mesh.pp=2)" = "$want" ] || fail "a pipeline: other weights"

for optimizer in lamb muon; do
    one=$(hash_of --set train.optimizer=$optimizer)
    [ "$(hash_of -n 2 --set mesh.zero=1 --set train.optimizer=$optimizer)" = "$one" ] || fail "$optimizer: 2 ranks, other weights"
done

# Stopped after 3 steps, and gone on with: what the model reads is made again from what was saved.
run 0 "$LINESHAFT" train run.yaml --json --set out=two --set train.steps=3
run 0 "$LINESHAFT" train run.yaml --json --set out=two
[ "$(field start first_step)" = 3 ] || fail "not gone on"
[ "$(field summary weights_hash)" = "$want" ] || fail "resumed: other weights"

run 2 "$LINESHAFT" train run.yaml --set out=no --set precision=fp32
says 'only bf16 weights are rounded'

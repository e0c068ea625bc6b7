#!/bin/sh
# train.neftune: noise on embeddings, the same on every mesh, in training only.
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories:16K], validation: 20%}
batch: {sequences: 8, leaf: 2}
train: {steps: 10, lr: 1e-2, neftune: 5}
eval: {every: 0, sequences: 16}
checkpoint: {every: 4}
YAML

run 0 "$LINESHAFT" train run.yaml --json --set out=one
want=$(field summary weights_hash)
losses >one.losses
run 0 "$LINESHAFT" train run.yaml --json --set out=off --set train.neftune=0
[ "$(field summary weights_hash)" != "$want" ] || fail "the noise changes nothing"
losses >off.losses
cmp -s one.losses off.losses && fail "the noise changes no loss"

# With a rate of nearly nothing validation, which has no noise, gives the same loss; training does not.
run 0 "$LINESHAFT" train run.yaml --json --set out=still --set train.lr=1e-30 --set model.dropout=0
quiet=$(field summary val_loss)
run 0 "$LINESHAFT" train run.yaml --json --set out=still0 --set train.lr=1e-30 --set model.dropout=0 --set train.neftune=0
[ "$(field summary val_loss)" = "$quiet" ] || fail "validation has noise"

for mesh in "-n 2" "-n 2 --set mesh.zero=3" "--set mesh.pp=2" "-n 4 --set mesh.pp=2" "--set batch.group=1" \
    "--set train.recompute=full" "--set device.isa=generic"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json --set out="m$mesh" $mesh
    [ "$(field summary weights_hash)" = "$want" ] || fail "other weights with $mesh"
done
for mesh in "--set mesh.tp=2" "--set mesh.cp=2" "-n 4 --set mesh.tp=2 --set mesh.pp=2" "--set mesh.tp=2 --set mesh.sp=false"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json --set out="m$mesh" $mesh
    losses >mesh.losses
    alike "$mesh" 10 one.losses mesh.losses
done

# Interrupted and resumed: the noise of a step is that of the step.
run 0 "$LINESHAFT" train run.yaml --set out=two --set train.steps=4 --set train.warmup=0 --set train.schedule=constant
run 0 "$LINESHAFT" train run.yaml --json --set out=two --set train.warmup=0 --set train.schedule=constant
again=$(field summary weights_hash)
run 0 "$LINESHAFT" train run.yaml --json --set out=whole --set train.warmup=0 --set train.schedule=constant
[ "$(field summary weights_hash)" = "$again" ] || fail "a resumed run has other noise"

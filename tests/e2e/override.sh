#!/bin/sh
# A run goes on with another learning rate only where the command line says so, and nothing is forgotten about
# it; the run it starts from is remembered, too.
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
model: {family: gpt2, layers: 2, width: 16, heads: 2, context: 32}
data: {text: [builtin:stories:8K], validation: 0}
batch: {sequences: 8, leaf: 2}
train: {steps: 20, lr: 1e-2, schedule: constant, warmup: 0}
checkpoint: {every: 10}
eval: {every: 0}
YAML
lineage() { # lineage RUN: of its newest checkpoint
    "$LINESHAFT" ckpt list "$1" --json |
        python3 -IS -c 'import json, sys; print(json.load(sys.stdin)["checkpoints"][-1]["lineage"])'
}
rate() { # rate STEP: the learning rate of that step
    sed -n "s/^{\"event\":\"step\",\"step\":$1,.*\"lr\":\([^,]*\).*/\1/p" out
}

run 0 "$LINESHAFT" train run.yaml --set out=a
[ -z "$(lineage a)" ] || fail "a fresh run has a lineage: $(lineage a)"
cp -r a b

# Without the word it is refused, which names it.
run 2 "$LINESHAFT" train run.yaml --set out=a --set train.steps=30 --set train.lr=1e-3
says "train.lr: 0.01 -> 0.001 (changes on resume only with --override train.lr=0.001)"
says "--override"
run 2 "$LINESHAFT" train run.yaml --set out=a --set train.steps=30 --override train.lr=1e-3 --set train.clip=2
says "train.clip: 1 -> 2 (changes on resume only with --override train.clip=2)"
for key in batch.sequences=16 model.width=32 train.seed=2 data.validation=0.1 train.optimizer=lion; do
    run 2 "$LINESHAFT" train run.yaml --set out=a --override $key
    says "${key%=*} cannot change in a run that has begun"
done
run 2 "$LINESHAFT" train run.yaml --set out=a --override train.lr
says "--override: \"train.lr\" is not of the form key=value"

# With it the run goes on, says so, and keeps it: in events and in the checkpoints.
run 0 "$LINESHAFT" train run.yaml --set out=b --set train.steps=30 --override train.lr=1e-3
says "with --override: train.lr 0.01 -> 0.001, train.min_lr 0.001 -> 0.0001"
run 0 "$LINESHAFT" train run.yaml --json --set out=a --set train.steps=30 --override train.lr=1e-3
[ "$(rate 21)" = 0.001 ] || fail "step 21 has rate $(rate 21)"
[ "$(field start overridden)" = "train.lr 0.01 -> 0.001, train.min_lr 0.001 -> 0.0001" ] || fail "no event says it"
want=$(field summary weights_hash)
[ "$(lineage a)" = "step 20: train.lr 0.01 -> 0.001, train.min_lr 0.001 -> 0.0001" ] || fail "lineage: $(lineage a)"

# The next process must say it again; then nothing changes, and nothing is noted.
run 2 "$LINESHAFT" train run.yaml --set out=a --set train.steps=40
says "train.lr: 0.001 -> 0.01"
run 0 "$LINESHAFT" train run.yaml --json --set out=a --set train.steps=40 --override train.lr=1e-3
! grep -q overridden out || fail "nothing was overridden: $(head -n 2 out)"
run 0 "$LINESHAFT" train run.yaml --json --set out=a --set train.steps=50 --override train.lr=1e-4 --override train.schedule=linear
[ "$(lineage a | wc -l)" = 2 ] || fail "lineage: $(lineage a)"

# The same on meshes, and with ranks that die right after it.
for mesh in "-n 2 --set mesh.zero=3" "--set mesh.pp=2"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --set out="m$mesh" $mesh
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json --set out="m$mesh" $mesh --set train.steps=30 --override train.lr=1e-3
    [ "$(field summary weights_hash)" = "$want" ] || fail "other weights with $mesh"
    [ "$(lineage "m$mesh" | head -n 1)" = "step 20: train.lr 0.01 -> 0.001, train.min_lr 0.001 -> 0.0001" ] ||
        fail "with $mesh the lineage is $(lineage "m$mesh")"
done

# In a run that has not begun it is like --set.
run 0 "$LINESHAFT" train run.yaml --json --set out=new --override train.lr=1e-3
[ "$(rate 1)" = 0.001 ] || fail "a new run has rate $(rate 1)"

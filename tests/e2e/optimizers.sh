#!/bin/sh
# optimizers.sh -- LAMB and Muon in whole runs: they learn, with equal bits on any number of ranks,
# resumed exactly on another number; a checkpoint of another optimizer is refused; learning rates
# follow the batch.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

# 7 leaves on 1 to 4 ranks; parts of ranks end inside of tensors.
cat >run.yaml <<'YAML'
name: large
model: {family: gpt2, layers: 2, width: 48, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 14, leaf: 2, group: 1}
train: {steps: 12, lr: 1e-2, schedule: constant, warmup: 3, clip: 0.5, weight_decay: 0.1, seed: 3}
checkpoint: {every: 0, keep: 2}
eval: {every: 0, sequences: 5, sample: ""}
YAML

for kind in lamb muon; do
    run 0 "$LINESHAFT" train run.yaml --json --set train.optimizer=$kind --set out=$kind
    losses out >want
    hash=$(field summary weights_hash)
    [ "$(field start optimizer)" = $kind ] || fail "the start does not tell the optimizer"
    awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first - 0.3) }' want ||
        fail "$kind learns nothing: $(cat want)"
    for mesh in 2,0 3,1 4,1; do
        run 0 "$LINESHAFT" train run.yaml --json -n "${mesh%,*}" --set "mesh.zero=${mesh#*,}" \
            --set train.optimizer=$kind --set "out=$kind$mesh"
        losses out >got
        cmp -s want got || fail "$kind on $mesh: $(diff want got | head -n 4)"
        [ "$(field summary weights_hash)" = "$hash" ] || fail "$kind on $mesh: other weights"
    done

    # Stopped and gone on with by other numbers of ranks: state of moments from one mesh to the next.
    : >got
    for part in 3,3,1 6,1,0 9,2,0 12,3,1; do
        zero=${part##*,} n=${part#*,} n=${n%,*}
        run 0 "$LINESHAFT" train run.yaml --json -n "$n" --set "train.steps=${part%%,*}" --set "mesh.zero=$zero" \
            --set train.optimizer=$kind --set checkpoint.every=2 --set out=moved-$kind
        losses out >>got
    done
    cmp -s want got || fail "$kind moved from mesh to mesh: $(diff want got | head -n 4)"
    [ "$(field summary weights_hash)" = "$hash" ] || fail "$kind moved from mesh to mesh: other weights"
    run 0 "$LINESHAFT" ckpt verify moved-$kind

    # Fast mode and bf16 on several ranks stay near one process.
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set mesh.zero=1 --set train.reduce=fast \
        --set train.optimizer=$kind --set out=fast-$kind
    losses out >got
    alike "fast mode of $kind" 12 want got 1e-3
    run 0 "$LINESHAFT" train run.yaml --json --set precision=bf16 --set train.optimizer=$kind --set out=half-$kind
    hash=$(field summary weights_hash)
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set precision=bf16 --set train.optimizer=$kind --set out=half3-$kind
    [ "$(field summary weights_hash)" = "$hash" ] || fail "$kind in bf16: other weights on 3 ranks"
done

# Moments of one optimizer mean nothing to another.
run 2 "$LINESHAFT" train run.yaml --set out=moved-lamb --set train.optimizer=muon --set train.steps=25
says 'train.optimizer: lamb -> muon (cannot change on resume)'
says '--fresh'

# A skipped step changes nothing, on any number of ranks.
for n in 1 3; do
    run 0 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml --json -n $n --set mesh.zero=1 \
        --set train.optimizer=muon --set train.nonfinite=skip --set train.steps=6 --set out=skip$n
    field summary weights_hash >skip$n.hash
done
cmp -s skip1.hash skip3.hash || fail "other weights after a skipped step"

# Half of the batch that the rate was chosen for, by each rule.
run 0 "$LINESHAFT" train run.yaml --json --set train.steps=6 --set train.lr_rule=linear --set train.lr_base_batch=28 --set out=rule
[ "$(field start lr) $(field start lr_factor)" = "0.005 0.5" ] || fail "not half: $(field start lr)"
[ "$(grep '"event":"step"' out | tail -n 1 | sed 's/.*"lr":\([^,]*\),.*/\1/')" = 0.005 ] || fail "the step has another rate"
run 0 "$LINESHAFT" train run.yaml --set train.steps=6 --set train.lr_rule=sqrt --set train.lr_base_batch=56 --set out=root
grep -q 'learning rate 0.005 (0.01 times 0.5, by train.lr_rule), 3 steps of warm-up' out || fail "not said: $(cat out)"

#!/bin/sh
# optimizers.sh -- optimizers in whole runs: they learn, with equal bits on any number of ranks,
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

# rate_of KIND: at which it learns here. meshes_of KIND, moves_of KIND: ranks and stage of ZeRO; steps, ranks and stage.
rate_of() {
    case $1 in lion) echo 1e-3 ;; sgd) echo 0.1 ;; *) echo 1e-2 ;; esac
}
meshes_of() {
    case $1 in
    lamb | muon) echo 2,0 3,1 4,1 ;;
    *) echo 2,0 3,1 3,2 4,3 ;; # element by element
    esac
}
moves_of() {
    case $1 in
    lamb | muon) echo 3,3,1 6,1,0 9,2,0 12,3,1 ;;
    *) echo 3,3,3 6,1,0 9,2,1 12,4,2 ;;
    esac
}

for kind in lamb muon lion sgd; do
    rate=$(rate_of $kind)
    run 0 "$LINESHAFT" train run.yaml --json --set train.optimizer=$kind --set train.lr=$rate --set out=$kind
    losses out >want
    cp want $kind/losses
    hash=$(field summary weights_hash)
    [ "$(field start optimizer)" = $kind ] || fail "the start does not tell the optimizer"
    awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first - 0.3) }' want ||
        fail "$kind learns nothing: $(cat want)"
    for mesh in $(meshes_of $kind); do
        run 0 "$LINESHAFT" train run.yaml --json -n "${mesh%,*}" --set "mesh.zero=${mesh#*,}" \
            --set train.optimizer=$kind --set train.lr=$rate --set "out=$kind$mesh"
        losses out >got
        cmp -s want got || fail "$kind on $mesh: $(diff want got | head -n 4)"
        [ "$(field summary weights_hash)" = "$hash" ] || fail "$kind on $mesh: other weights"
    done

    # Stopped and gone on with by other numbers of ranks: state of moments from one mesh to the next.
    : >got
    for part in $(moves_of $kind); do
        zero=${part##*,} n=${part#*,} n=${n%,*}
        run 0 "$LINESHAFT" train run.yaml --json -n "$n" --set "train.steps=${part%%,*}" --set "mesh.zero=$zero" \
            --set train.optimizer=$kind --set train.lr=$rate --set checkpoint.every=2 --set out=moved-$kind
        losses out >>got
    done
    cmp -s want got || fail "$kind moved from mesh to mesh: $(diff want got | head -n 4)"
    [ "$(field summary weights_hash)" = "$hash" ] || fail "$kind moved from mesh to mesh: other weights"
    run 0 "$LINESHAFT" ckpt verify moved-$kind

    # Fast mode and bf16 on several ranks stay near one process.
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set mesh.zero=1 --set train.reduce=fast \
        --set train.optimizer=$kind --set train.lr=$rate --set out=fast-$kind
    losses out >got
    alike "fast mode of $kind" 12 want got 1e-3
    run 0 "$LINESHAFT" train run.yaml --json --set precision=bf16 --set train.optimizer=$kind --set train.lr=$rate --set out=half-$kind
    hash=$(field summary weights_hash)
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set precision=bf16 --set train.optimizer=$kind --set train.lr=$rate --set out=half3-$kind
    [ "$(field summary weights_hash)" = "$hash" ] || fail "$kind in bf16: other weights on 3 ranks"
done

# What goes element by element goes everywhere: stages, offloaded moments, servers, adapters, tp groups that divide a tensor, experts.
for kind in lion sgd; do
    set -- --set train.optimizer=$kind --set "train.lr=$(rate_of $kind)"
    hash=$(field summary weights_hash $kind/events.jsonl)
    same_hash() { # same_hash WHAT RANKS [SET ...]: and its checkpoint has one moment of each parameter
        what=$1 n=$2
        shift 2
        run 0 "$LINESHAFT" train run.yaml --json -n "$n" "$@" --set "out=$what"
        [ "$(field summary weights_hash)" = "$hash" ] || fail "$what: other weights"
    }
    same_hash $kind-disk 2 "$@" --set mesh.zero=1 --set device.offload=disk
    same_hash $kind-pp 4 "$@" --set mesh.pp=2 --set mesh.zero=3 --set checkpoint.every=6
    manifest=$(find $kind-pp/checkpoints -name "step-*.json" | head -n 1)
    grep -q "\"kind\":\"$kind.m\"" "$manifest" || fail "no moment of $kind in the checkpoint"
    ! grep -q '"kind":"adam' "$manifest" || fail "moments of AdamW in the checkpoint"
    run 0 "$LINESHAFT" train run.yaml --json -n 2 "$@" --set mesh.tp=2 --set out=$kind-tp
    hash=$(field summary weights_hash)
    same_hash $kind-tp-zero 4 "$@" --set mesh.tp=2 --set mesh.zero=1
    run 0 "$LINESHAFT" train run.yaml --json -n 3 "$@" --set sync=ps --set train.reduce=fast --set out=$kind-ps
    losses out >got
    alike "servers of $kind" 12 $kind/losses got 1e-3
    run 2 "$LINESHAFT" train run.yaml -n 2 "$@" --set sync=local --set out=$kind-local
    says 'workers save two moments of every weight'
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

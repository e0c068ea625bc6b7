#!/bin/sh
# expert.sh -- experts that are divided among ranks (mesh.ep): losses of one process within 1e-4, one team and
# several, uneven and idle ranks, a checkpoint for any mesh and from any mesh, and what cannot be.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >mixtral.yaml <<'YAML'
name: divided
model: {family: mixtral, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 24, mlp: 40, experts: 8, experts_used: 2, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 2, group: 1}
train: {steps: 30, lr: 3e-3, schedule: constant, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3, reduce: fast, balance_loss: 0.01, z_loss: 0.001}
checkpoint: {every: 0, keep: 2}
eval: {every: 15, sequences: 5, sample: "Once", sample_tokens: 4}
YAML
sed 's/^model:.*/model: {family: olmoe, layers: 2, width: 32, heads: 4, context: 24, mlp: 24, experts: 8, experts_used: 3, experts_norm: false}/' \
    mixtral.yaml >olmoe.yaml

# near NAME: the last run's losses and validation against those in `alone`.
near() {
    curve >got
    alike "$1" 31 alone got
    [ ! -s err ] || fail "$1 says: $(cat err)"
}

# meshes: ep, ranks, and what else is set. Six sequences on four ranks are 2 2 1 1.
for model in mixtral olmoe; do
    run 0 "$LINESHAFT" train $model.yaml --json --set out=$model
    curve >alone
    field start parameters >alone.parameters
    case $model in
    mixtral) meshes="2,2,batch.group=2 2,4,batch.leaf=1 4,4,train.reduce=ordered" ;;
    *) meshes="2,2,batch.leaf=1 2,4,device.threads=1" ;;
    esac
    for mesh in $meshes; do
        ep=${mesh%%,*} set=${mesh##*,} ranks=${mesh#*,} ranks=${ranks%,*}
        run 0 "$LINESHAFT" train $model.yaml --json -n "$ranks" --set "mesh.ep=$ep" --set "$set" --set "out=$model$mesh"
        near "$model on $mesh"
        [ "$(field start parameters)" = "$(cat alone.parameters)" ] || fail "$mesh counts a part of the model"
        [ "$(field start ranks)" = "$ranks" ] || fail "start does not tell the ranks"
        echo "$(field summary peak_bytes) $(field summary ledger_bytes)" | awk '{ exit $1 > 1.05 * $2 }' || # beside communicators
            fail "more memory than the ledger says: $(field summary peak_bytes) of $(field summary ledger_bytes)"
        grep -q '"event":"sample"' out || fail "$mesh writes no sample"
    done
done

# mesh.ep starts its ranks by itself, and the same mesh gives the same bits.
for out in once again; do
    run 0 "$LINESHAFT" train mixtral.yaml --json --set mesh.ep=2 --set train.steps=6 --set out=$out
    [ "$(field start ranks)" = 2 ] || fail "mesh.ep starts other ranks"
    field summary weights_hash >$out.hash
done
cmp -s once.hash again.hash || fail "two runs on one mesh differ"

# Slices by weights leave a rank without a sequence: its experts serve.
run 0 "$LINESHAFT" train mixtral.yaml --json --set out=one
curve >alone
run 0 "$LINESHAFT" train mixtral.yaml --json -n 2 --set mesh.ep=2 --set 'mesh.weights=[1, 1e-6]' --set out=weighed
curve >got
alike "with an idle rank it" 31 alone got

# A checkpoint of any mesh is gone on with by any other.
: >parts
for part in 6,1,1,0 12,2,2,0 18,1,2,1 24,2,4,0 30,4,4,0; do
    steps=${part%%,*} rest=${part#*,} ep=${rest%%,*} zero=${part##*,} ranks=${rest#*,} ranks=${ranks%,*}
    run 0 "$LINESHAFT" train mixtral.yaml --json -n "$ranks" --set "mesh.ep=$ep" --set "mesh.zero=$zero" --set "train.steps=$steps" \
        --set checkpoint.every=4 --set out=moved
    losses out >>parts
done
curve | tail -n 1 >>parts
alike "moved from mesh to mesh: it" 31 alone parts
run 0 "$LINESHAFT" ckpt verify moved

# Out as a Hugging Face folder, and divided again from there.
run 0 "$LINESHAFT" export moved hf
cat >tune.yaml <<'YAML'
name: tune
model: {import: hf, context: 24}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 2}
train: {steps: 2, lr: 1e-3, reduce: fast}
checkpoint: {every: 0}
eval: {sequences: 2, sample: ""}
YAML
run 0 "$LINESHAFT" train tune.yaml --json --set out=tune1
losses out >alone
run 0 "$LINESHAFT" train tune.yaml --json --set mesh.ep=2 --set out=tune2
losses out >got
alike "from a folder it" 2 alone got

# A step that is not finite ends all ranks with one sentence, or is skipped by all.
run 7 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train mixtral.yaml -n 4 --set mesh.ep=2 --set out=nan
[ "$(grep -c 'holds NaN' err)" = 1 ] || fail "not one sentence: $(cat err)"
run 0 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train mixtral.yaml --json -n 2 --set mesh.ep=2 --set train.nonfinite=skip \
    --set train.steps=6 --set out=skip
[ "$(grep -c 'is skipped' err)" = 1 ] || fail "a skipped step is not said once: $(cat err)"

# What cannot be divided, and what mesh.ep does not do.
refused 'mesh.ep is 3 .* model.experts is 8 .*: they cannot be divided evenly' mixtral.yaml --set mesh.ep=3
refused 'mesh.ep is 2, but the run has 3 data-parallel ranks, which cannot be grouped so' mixtral.yaml -n 3 --set mesh.ep=2
refused 'mesh.ep is 2 .* mesh.dp is 3' mixtral.yaml --set mesh.ep=2 --set mesh.dp=3
refused 'it has no experts to divide' mixtral.yaml --set model.family=llama --set model.experts=0 --set train.balance_loss=0.001 \
    --set train.z_loss=0 --set mesh.ep=2
refused 'mesh.tp.*mesh.ep' mixtral.yaml --set mesh.ep=2 --set mesh.tp=2
refused 'mesh.pp.*mesh.ep' mixtral.yaml --set mesh.ep=2 --set mesh.pp=2
refused 'mesh.zero.*mesh.ep' mixtral.yaml --set mesh.ep=2 --set mesh.zero=1
refused 'normalises the queries of all heads together' olmoe.yaml --set mesh.tp=2

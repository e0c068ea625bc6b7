#!/bin/sh
# expert_parallel.sh -- experts that are divided among ranks (mesh.ep), alone and with mesh.zero, mesh.pp, mesh.tp and mesh.cp: losses of one process
# within 1e-4, uneven and idle ranks, a checkpoint for any mesh and from any mesh, and what cannot be.
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
    mixtral)
        meshes="2,2,batch.group=2 2,4,batch.leaf=1,mesh.zero=3 4,4,train.reduce=ordered 2,4,mesh.pp=2,mesh.schedule=zero-bubble
            2,8,mesh.cp=2,mesh.zero=2,mesh.shard=2 2,4,mesh.tp=2 2,8,mesh.tp=2,mesh.zero=2,mesh.sp=false 2,8,mesh.pp=2,mesh.tp=2
            2,4,mesh.cp=2,mesh.zero=3 4,4,mesh.cp=2,mesh.zero=1,batch.leaf=1 2,8,mesh.pp=2,mesh.zero=3,train.recompute=full"
        ;;
    *)
        meshes="2,2,batch.leaf=1 2,4,device.threads=1 2,8,mesh.pp=2,mesh.zero=1
            2,4,mesh.tp=2 1,4,mesh.tp=2,mesh.cp=2,train.recompute=full"
        ;; # with mesh.tp its norms go over the heads of all ranks of a tp group
    esac
    for mesh in $meshes; do
        ep=${mesh%%,*} ranks=${mesh#*,} sets=$(echo "${mesh#*,*,}" | sed 's/^/--set /;s/,/ --set /g') ranks=${ranks%%,*}
        # shellcheck disable=SC2086 # words are what is wanted
        run 0 "$LINESHAFT" train $model.yaml --json -n "$ranks" --set "mesh.ep=$ep" $sets --set "out=$model$mesh"
        near "$model on $mesh"
        [ "$(field start parameters)" = "$(cat alone.parameters)" ] || fail "$mesh counts a part of the model"
        [ "$(field start ranks)" = "$ranks" ] || fail "start does not tell the ranks"
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
for part in 5,1,1,0,1,1,1 9,2,4,3,1,1,1 13,1,2,3,1,1,1 17,2,4,0,2,1,1 19,2,8,3,2,1,1 20,1,1,0,1,1,1 22,2,8,2,1,2,1 24,2,8,3,2,1,2 26,2,8,0,2,2,1 28,4,4,1,1,1,2 30,4,4,0,1,1,1; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$part" | tr , ' ')
    run 0 "$LINESHAFT" train mixtral.yaml --json -n "$3" --set "train.steps=$1" --set "mesh.ep=$2" --set "mesh.zero=$4" \
        --set "mesh.pp=$5" --set "mesh.tp=$6" --set "mesh.cp=$7" --set checkpoint.every=4 --set out=moved
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
for more in mesh.zero=3 mesh.pp=2 mesh.tp=2; do
    run 7 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train mixtral.yaml -n 4 --set mesh.ep=2 --set $more --set out=nan$more
    [ "$(grep -c 'holds NaN' err)" = 1 ] || fail "$more: not one sentence: $(cat err)"
done
run 0 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train mixtral.yaml --json -n 2 --set mesh.ep=2 --set train.nonfinite=skip \
    --set train.steps=6 --set out=skip
[ "$(grep -c 'is skipped' err)" = 1 ] || fail "a skipped step is not said once: $(cat err)"

# Whoever asks for it is told where there is nobody to divide with.
run 0 "$LINESHAFT" train mixtral.yaml --json -n 4 --set mesh.ep=2 --set mesh.tp=2 --set train.steps=2 --set train.warmup=1 \
    --set mesh.zero=3 --set eval.every=0 --set out=told
[ "$(grep -c 'mesh.zero: 3 divides no more than 1 does' err)" = 1 ] || fail "not said that nobody has the same experts: $(cat err)"

# What cannot be divided, and what mesh.ep does not do.
refused 'mesh.ep is 3 .* model.experts is 8 .*: they cannot be divided evenly' mixtral.yaml --set mesh.ep=3
refused 'mesh.ep is 2, but the run has 3 data-parallel ranks, which cannot be grouped so' mixtral.yaml -n 3 --set mesh.ep=2
refused 'mesh.ep is 2 .* mesh.dp is 3' mixtral.yaml --set mesh.ep=2 --set mesh.dp=3
refused 'it has no experts to divide' mixtral.yaml --set model.family=llama --set model.experts=0 --set train.balance_loss=0.001 \
    --set train.z_loss=0 --set mesh.ep=2
refused 'mesh.ep is 2, but the run has 3 data-parallel pipelines, which cannot be grouped so' mixtral.yaml -n 6 --set mesh.ep=2 --set mesh.pp=2
refused 'mesh.ep is 4, but the run has 2 data-parallel tensor-parallel groups, which cannot be grouped so' mixtral.yaml -n 4 --set mesh.ep=4 --set mesh.tp=2

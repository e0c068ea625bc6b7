#!/bin/sh
# tensor_products.sh -- pipelines of tp groups (mesh.pp with mesh.tp) and tp groups whose replicas divide their part (mesh.zero): losses of one
# process within 1e-4, bits of any mesh.dp and mesh.zero, checkpoints from and to any mesh, samples, steps that are not finite, refusals.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >run.yaml <<'YAML'
name: hybrid
model: {family: gpt2, layers: 4, width: 48, heads: 4, context: 24, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 1, group: 1}
train: {steps: 12, lr: 3e-3, schedule: constant, warmup: 2, clip: 0.5, weight_decay: 0.1, seed: 3}
device: {threads: 1}
checkpoint: {every: 0, keep: 2}
eval: {every: 6, sequences: 5, sample: "Once", sample_tokens: 4}
YAML

# near NAME FILE: losses and validation beside those of one process.
near() { alike "$1" 13 alone "$2"; }
run 0 "$LINESHAFT" train run.yaml --json --set out=one
curve >alone

# A pipeline of tp groups, several of them, with what pipelines divide: pp, tp, ranks, zero, divided rows.
for mesh in 2,2,4,0,true 2,2,8,1,false 1,2,4,3,true 1,2,4,2,false; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$mesh" | tr , ' ')
    run 0 "$LINESHAFT" train run.yaml --json -n "$3" --set "mesh.pp=$1" --set "mesh.tp=$2" --set "mesh.zero=$4" --set "mesh.sp=$5" \
        --set "out=o$mesh"
    curve >got
    near "$mesh" got
    [ ! -s err ] || fail "$mesh says: $(cat err)"
    grep -q '"event":"sample"' out || fail "$mesh writes no sample"
done
# mesh.pp and mesh.tp start their ranks by themselves, and in ordered mode the same mesh gives the same bits.
for out in once again; do
    run 0 "$LINESHAFT" train run.yaml --json --set mesh.pp=2 --set mesh.tp=2 --set train.steps=4 --set out=$out
    [ "$(field start ranks)" = 4 ] || fail "not four ranks"
    field summary weights_hash >$out.hash
done
cmp -s once.hash again.hash || fail "two ordered runs on one mesh differ"

# Ordered: how many tp groups there are, and what of their part they divide, changes no bit.
for mesh in 2,0,world 4,0,world 4,1,world 4,2,world 4,3,world 8,3,2; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$mesh" | tr , ' ')
    run 0 "$LINESHAFT" train run.yaml --json -n "$1" --set mesh.tp=2 --set "mesh.zero=$2" --set "mesh.shard=$3" --set train.steps=4 \
        --set mesh.bucket=64KiB --set "out=bits$mesh"
    echo "$(field summary weights_hash) $(losses out | tr '\n' ' ')" >got
    [ "$mesh" != 2,0,world ] || cp got want
    cmp -s want got || fail "mesh.tp: 2 on $mesh: other bits: $(cat got), and not $(cat want)"
done

# A checkpoint of any mesh is gone on with by any other: steps up to N, pp, tp, ranks, zero.
: >parts
for part in 2,1,2,4,3 4,2,2,4,0 5,1,1,3,3 7,2,2,8,1 8,2,1,4,1 10,1,2,4,2 12,4,2,8,0; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$part" | tr , ' ')
    run 0 "$LINESHAFT" train run.yaml --json -n "$4" --set "train.steps=$1" --set "mesh.pp=$2" --set "mesh.tp=$3" --set "mesh.zero=$5" \
        --set checkpoint.every=2 --set out=moved
    losses out >>parts
done
curve | tail -n 1 >>parts
near "moved from mesh to mesh" parts
run 0 "$LINESHAFT" ckpt verify moved
grep -rq 'pp=4 dp=1 tp=2' moved/checkpoints || fail "the manifest does not tell the mesh"

# A step that is not finite ends all ranks with one sentence, or is skipped by all.
ends_at_nan run.yaml --set mesh.pp=2 --set mesh.tp=2
skips_nan run.yaml --set mesh.pp=2 --set mesh.tp=2 --set train.steps=5

# What cannot be, with what can.
no() {
    words=$1
    shift
    run 2 "$LINESHAFT" train run.yaml --set out=no "$@"
    says "$words"
    [ ! -e no ] || fail "a refused run leaves a folder"
}
no 'mesh.pp is 2 and mesh.tp 2, but the run has 6 ranks, which cannot be grouped so' -n 6 --set mesh.pp=2 --set mesh.tp=2
says 'Give -n 4 or -n 8, or another mesh.pp or mesh.tp'
no 'mesh.pp is 2, mesh.tp 2 and mesh.dp 2, but the run has 4 ranks: it needs 8' -n 4 --set mesh.pp=2 --set mesh.tp=2 --set mesh.dp=2
no '4 layers cannot be cut into 5 stages' --set mesh.pp=5 --set mesh.tp=2
no 'mesh.tp is 3 but model.heads is 4' --set mesh.pp=2 --set mesh.tp=3
no 'mesh.shard cannot be 3: 4 ranks cannot be grouped by 3' -n 8 --set mesh.tp=2 --set mesh.zero=1 --set mesh.shard=3
no 'are copied with mesh.zero: 1 only' -n 4 --set mesh.tp=2 --set mesh.zero=2 --set heal.buddies=on
no 'groups of ranks that hold the same shard keep no copies' -n 8 --set mesh.tp=2 --set mesh.zero=1 --set mesh.shard=2 --set heal.buddies=on

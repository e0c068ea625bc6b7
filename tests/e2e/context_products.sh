#!/bin/sh
# context_products.sh -- ranks that share sequences (mesh.cp) together with tp groups (mesh.tp), pipelines (mesh.pp), ZeRO and experts: losses of one
# process within 1e-4, checkpoints from and to any mesh, the same bits on the same mesh, steps that are not finite, refusals.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >gpt2.yaml <<'YAML'
name: cross
model: {family: gpt2, layers: 2, width: 48, heads: 4, context: 24, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 1, group: 1}
train: {steps: 30, lr: 3e-3, schedule: constant, warmup: 2, clip: 0.5, weight_decay: 0.1, seed: 3}
device: {threads: 1}
checkpoint: {every: 0, keep: 2}
eval: {every: 15, sequences: 5, sample: "Once", sample_tokens: 4}
YAML
sed 's/^model:.*/model: {family: mixtral, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 24, mlp: 40, experts: 4, experts_used: 2}/
    s/seed: 3/seed: 3, reduce: fast, balance_loss: 0.01, z_loss: 0.001/' gpt2.yaml >mixtral.yaml

# near NAME FILE: losses and validation beside those of one process.
near() { alike "$1" 31 alone "$2"; }
# on PP CP TP RANKS ZERO WORDS...: the run of $model on such a mesh.
on() {
    mesh="pp $1 cp $2 tp $3 ranks $4 zero $5"
    pp=$1 cp=$2 tp=$3 ranks=$4 zero=$5
    shift 5
    run 0 "$LINESHAFT" train $model.yaml --json -n "$ranks" --set "mesh.pp=$pp" --set "mesh.cp=$cp" --set "mesh.tp=$tp" \
        --set "mesh.zero=$zero" "$@"
}

# pp, cp, tp, ranks, zero, how keys come.
for model in mixtral gpt2; do
    run 0 "$LINESHAFT" train $model.yaml --json --set out=$model
    curve >alone
    case $model in
    mixtral) meshes="1,2,1,2,2,ring 2,2,1,4,0,ring 1,2,2,4,1,gather" ;;
    *) meshes="1,2,2,4,0,ring 2,2,1,4,1,gather 2,2,2,8,0,ring" ;;
    esac
    for one in $meshes; do
        # shellcheck disable=SC2046 # words are what is wanted
        set -- $(echo "$one" | tr , ' ')
        on "$1" "$2" "$3" "$4" "$5" --set "mesh.keys=$6" --set "out=$model$one"
        curve >got
        near "$model on $mesh" got
        [ ! -s err ] || fail "$mesh says: $(cat err)"
        [ "$(field start cp)" = "$2" ] || fail "start does not tell who shares"
        grep -q '"event":"sample"' out || fail "$mesh writes no sample"
    done
done

# The axes start their ranks by themselves, and in ordered mode the same mesh gives the same bits.
same_bits gpt2.yaml --set mesh.cp=2 --set mesh.tp=2 --set train.steps=4
[ "$(field start ranks)" = 4 ] || fail "not four ranks"

# A checkpoint of any mesh is gone on with by any other: steps up to N, pp, cp, tp, ranks, zero.
: >parts
for part in 5,1,1,1,1,0 10,1,2,2,4,0 15,2,2,2,8,1 20,1,1,1,3,3 25,1,3,2,6,1 30,2,2,1,4,0; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$part" | tr , ' ')
    on "$2" "$3" "$4" "$5" "$6" --set "train.steps=$1" --set checkpoint.every=5 --set out=moved
    losses out >>parts
    [ "$1" != 25 ] || grep -rq 'dp=1 cp=3 tp=2 zero=1' moved/checkpoints || fail "the manifest does not tell the mesh"
done
curve | tail -n 1 >>parts
near "moved from mesh to mesh" parts
run 0 "$LINESHAFT" ckpt verify moved

# A step that is not finite ends all ranks with one sentence, or is skipped by all.
ends_at_nan gpt2.yaml --set mesh.pp=2 --set mesh.cp=2 --set mesh.tp=2
skips_nan mixtral.yaml --set mesh.pp=2 --set mesh.cp=2 --set train.steps=5

# What cannot be, with what can.
no() {
    words=$1
    shift
    run 2 "$LINESHAFT" train gpt2.yaml --set out=no "$@"
    says "$words"
    [ ! -e no ] || fail "a refused run leaves a folder"
}
no 'mesh.pp is 2 and mesh.cp 2, but the run has 6 ranks, which cannot be grouped so' -n 6 --set mesh.pp=2 --set mesh.cp=2
says 'Give -n 4 or -n 8, or another mesh.pp or mesh.cp'
no 'mesh.pp is 2, mesh.cp 2, mesh.tp 2 and mesh.dp 2, but the run has 8 ranks: it needs 16' -n 8 --set mesh.pp=2 --set mesh.cp=2 \
    --set mesh.tp=2 --set mesh.dp=2

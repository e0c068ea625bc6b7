#!/bin/sh
# Parts of a model, of sequences and of what is trained, on NVIDIA GPUs: mesh.tp, mesh.pp, mesh.cp, mesh.ep, mesh.zero and
# products of them train as one process does, and go on with each other's checkpoints. Ranks share cards where there are fewer of them.
#
#   tests/gpu/gpu_mesh.sh [FOLDER]     in FOLDER, which is made (default: a new temporary one, removed)
#
# Needs what tests/gpu/gpu_ranks.sh needs. DEVICE=cpu tries the script itself without a GPU. MESH_STEPS, MESH_FAMILIES,
# MESH_TYPES and MESH_ONLY (a pattern of grep, of names of meshes) choose less (at least 12 steps: fewer shorten the warm-up of a quarter of them). The exit status is the number of checks that failed, at most 100.
set -u
# shellcheck source=tests/gpu/checks.sh
. "$(dirname "$0")/checks.sh"
steps=${MESH_STEPS:-20}
families=${MESH_FAMILIES:-gpt2 llama qwen3 mixtral olmoe olmo2 phi3}
types=${MESH_TYPES:-fp32 bf16}

# train NAME RANKS SETTING...: a run in folder NAME, its events in NAME.json; says what went wrong.
train() {
    name=$1
    ranks=$2
    shift 2
    sets=""
    for s in "$@" "out=$name" "device.kind=$DEVICE"; do
        sets="$sets --set $s"
    done
    [ "$ranks" = 1 ] || sets="$sets -n $ranks"
    # shellcheck disable=SC2086
    "$LINESHAFT" train run.yaml --json $sets >"$name.json" 2>"$name.err" && return 0
    sed 's/^/        /' "$name.err"
    return 1
}

write_text 3000
cat >run.yaml <<YAML
model: {layers: 4, width: 128, heads: 4, context: 64}
data: {text: [text.txt], validation: 5%}
batch: {sequences: 8, leaf: 2, group: 1}
train: {steps: $steps, warmup: 2, lr: 0.001, schedule: constant}
eval: {every: 10, sequences: 8}
checkpoint: {every: 0}
YAML

# name ranks settings
meshes='tp2 2 mesh.tp=2 mesh.sp=false
tp2-sp 2 mesh.tp=2
tp4 4 mesh.tp=4
pp2-gpipe 2 mesh.pp=2 mesh.schedule=gpipe
pp2-1f1b 2 mesh.pp=2 mesh.schedule=1f1b
pp2-interleaved 2 mesh.pp=2 mesh.schedule=interleaved mesh.chunks=2
pp2-zero-bubble 2 mesh.pp=2 mesh.schedule=zero-bubble
pp2-tp2 4 mesh.pp=2 mesh.tp=2
cp2-ring 2 mesh.cp=2
cp2-gather 2 mesh.cp=2 mesh.keys=gather
dp2-tp2-zero1 4 mesh.tp=2 mesh.zero=1
dp2-pp2-zero1 4 mesh.pp=2 mesh.zero=1
dp2-zero2 2 mesh.zero=2
dp2-zero3 2 mesh.zero=3
dp3-zero3 3 mesh.zero=3 mesh.bucket=262144
dp4-zero1-shard2 4 mesh.zero=1 mesh.shard=2
dp4-zero3-shard2 4 mesh.zero=3 mesh.shard=2 mesh.bucket=262144
dp2-tp2-zero2 4 mesh.tp=2 mesh.zero=2
dp2-tp2-zero3 4 mesh.tp=2 mesh.zero=3 mesh.bucket=262144
cp2-zero3 2 mesh.cp=2 mesh.zero=3'
mixtures='pp2-1f1b 2 mesh.pp=2
pp2-zero-bubble 2 mesh.pp=2 mesh.schedule=zero-bubble
cp2-ring 2 mesh.cp=2
pp2-cp2 4 mesh.pp=2 mesh.cp=2 train.recompute=full
tp2 2 mesh.tp=2 train.recompute=full
tp2-pp2 4 mesh.pp=2 mesh.tp=2 mesh.sp=false
dp2-zero3 2 mesh.zero=3
dp2-tp2-zero3 4 mesh.tp=2 mesh.zero=3
ep2 2 mesh.ep=2
ep2-recompute 2 mesh.ep=2 train.recompute=full
dp2-ep2-zero1 4 mesh.ep=2 mesh.zero=1
ep2-tp2 4 mesh.ep=2 mesh.tp=2
ep2-pp2 4 mesh.ep=2 mesh.pp=2
dp2-ep2-zero3 4 mesh.ep=2 mesh.zero=3'

for family in $families; do
    for type in $types; do
        base="model.family=$family precision=$type"
        [ "$family" = gpt2 ] || base="$base model.kv_heads=2"
        table=$meshes
        if [ "$family" = mixtral ] || [ "$family" = olmoe ]; then
            base="$base model.experts=4"
            table=$mixtures
        fi
        tolerance=1e-4
        [ "$type" = fp32 ] || tolerance=1e-2
        one=$family-$type-1
        # shellcheck disable=SC2086
        train "$one" 1 $base
        result "$family $type: one process" $?
        echo "$table" | grep "^[^ ]*${MESH_ONLY:-}" >meshes.txt
        while read -r mesh n sets; do
            t=$family-$type-$mesh
            # shellcheck disable=SC2086
            train "$t" "$n" $base $sets </dev/null && near "$t" "$one" $tolerance
            result "$family $type: $mesh, within $tolerance of one process" $?
        done <meshes.txt
    done
done

# Saved by one mesh, gone on with by another, in the end by one process.
half=$((steps / 2))
# ends_alike WAY STRAIGHT: the last losses of two runs.
ends_alike() {
    awk -v a="$(losses "$1" | awk '{ x = $2 } END { print x }')" -v b="$(losses "$2" | awk '{ x = $2 } END { print x }')" 'BEGIN {
        d = (a - b) / b; if (d < 0) d = -d; printf "        %s and %s\n", a, b; exit !(a > 0 && d < 1e-3) }'
}
case " $families " in *" llama "*)
    base="model.family=llama model.kv_heads=2"
    # shellcheck disable=SC2086
    train way 2 $base mesh.tp=2 train.steps=$((half / 2)) && train way 4 $base mesh.pp=2 mesh.zero=1 train.steps=$half &&
        train way 2 $base mesh.cp=2 mesh.zero=3 train.steps=$((half + half / 2)) && train way 1 $base
    result "a checkpoint goes from mesh.tp to mesh.pp to mesh.cp to one process" $?
    # shellcheck disable=SC2086
    train straight 1 $base && ends_alike way straight
    result "and ends where one process does" $?
    ;;
esac
case " $families " in *" mixtral "*)
    base="model.family=mixtral model.experts=4"
    # shellcheck disable=SC2086
    train mixed-way 2 $base mesh.ep=2 mesh.zero=1 train.steps=$((half / 2)) && train mixed-way 2 $base mesh.tp=2 train.steps=$half &&
        train mixed-way 1 $base
    result "a checkpoint of a mixture goes from mesh.ep to mesh.tp to one process" $?
    # shellcheck disable=SC2086
    train mixed-straight 1 $base && ends_alike mixed-way mixed-straight
    result "and ends where one process does" $?
    ;;
esac
finish

#!/bin/sh
# context.sh -- ranks that share sequences (mesh.cp): losses of one process within 1e-4, both ways, with
# ZeRO, several cp groups, documents, a long context, a checkpoint for any mesh and from any mesh, and what
# cannot be.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >gpt2.yaml <<'YAML'
name: shared
model: {family: gpt2, layers: 2, width: 32, heads: 4, context: 24, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 2, group: 1}
train: {steps: 30, lr: 3e-3, schedule: constant, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3, reduce: fast}
checkpoint: {every: 0, keep: 2}
eval: {every: 15, sequences: 5, sample: "Once", sample_tokens: 4}
YAML
sed 's/^model:.*/model: {family: llama, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 24}/' gpt2.yaml >llama.yaml
sed 's/^model:.*/model: {family: qwen3, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 24}/' gpt2.yaml >qwen3.yaml

# near NAME: the last run's losses and validation against those in `alone`.
near() {
    curve >got
    alike "$1" 31 alone got
    [ ! -s err ] || fail "$1 says: $(cat err)"
}

# meshes: mesh.cp, number of cp groups, ZeRO, how keys come, how gradients are summed.
for model in gpt2 llama qwen3; do
    run 0 "$LINESHAFT" train $model.yaml --json --set out=$model
    curve >alone
    case $model in
    gpt2) meshes="2,1,0,ring,fast 2,2,0,ring,ordered 3,1,1,gather,fast" ;;
    llama) meshes="4,1,0,ring,ordered 2,2,2,gather,ordered" ;;
    *) meshes="2,1,0,gather,fast 2,2,3,ring,fast" ;;
    esac
    for mesh in $meshes; do
        IFS=, read -r cp rings zero keys reduce <<MESH
$mesh
MESH
        run 0 "$LINESHAFT" train $model.yaml --json -n $((cp * rings)) --set "mesh.cp=$cp" --set "mesh.keys=$keys" \
            --set "mesh.zero=$zero" --set "train.reduce=$reduce" --set "out=$model-$mesh"
        near "$model on $mesh"
        [ "$(field start ranks)" = $((cp * rings)) ] || fail "start does not tell the ranks"
        [ "$(field start cp)" = "$cp" ] || fail "start does not tell who shares"
        grep -q '"event":"sample"' out || fail "$mesh writes no sample"
    done
done

# mesh.cp starts its ranks by itself; in ordered mode the same mesh gives the same bits, and larger calls
# change nothing but what rounding does.
same_bits gpt2.yaml --set mesh.cp=2 --set train.reduce=ordered --set train.steps=6
losses out >want
run 0 "$LINESHAFT" train gpt2.yaml --json --set mesh.cp=2 --set train.reduce=ordered --set train.steps=6 --set batch.leaf=1 \
    --set batch.group=4 --set out=grouped
losses out >got
alike "with larger calls it" 6 want got

# Documents stay apart, and a batch may grow.
for sets in data.isolate=true batch.ramp=10; do
    run 0 "$LINESHAFT" train llama.yaml --json --set $sets --set train.steps=12 --set out=alone-$sets
    losses out >want
    for reduce in fast ordered; do
        run 0 "$LINESHAFT" train llama.yaml --json --set $sets --set train.steps=12 --set mesh.cp=2 --set train.reduce=$reduce \
            --set out=$reduce-$sets
        losses out >got
        alike "$sets with $reduce" 12 want got
    done
done

# A long context on tiny widths, against one process.
seq 1 40000 >numbers.txt
cat >long.yaml <<'YAML'
name: long
model: {family: llama, layers: 1, width: 16, heads: 1, context: 16384, mlp: 16}
data: {text: [numbers.txt], tokenizer: bytes, validation: 0}
batch: {sequences: 1}
train: {steps: 2, lr: 1e-3, warmup: 0, schedule: constant, reduce: fast}
checkpoint: {every: 0}
eval: {every: 0, sequences: 1, sample: ""}
YAML
run 0 "$LINESHAFT" train long.yaml --json --set out=long1
losses out >want
run 0 "$LINESHAFT" train long.yaml --json --set mesh.cp=4 --set out=long4
losses out >got
alike "a long context" 2 want got

# 128k tokens. Documents that see only themselves keep it short: full attention over them takes a minute (bench/context.sh).
sed 's/context: 16384/context: 131072/; s/^data:.*/data: {text: [builtin:stories], tokenizer: bytes, isolate: true, validation: 0}/' long.yaml >longest.yaml
run 0 "$LINESHAFT" train longest.yaml --json --set out=longest1
losses out >want
for keys in ring gather; do
    run 0 "$LINESHAFT" train longest.yaml --json --set mesh.cp=4 --set mesh.keys=$keys --set out=longest-$keys
    losses out >got
    alike "a context of 128k, $keys," 2 want got
done

# A checkpoint of any mesh is gone on with by any other.
run 0 "$LINESHAFT" train gpt2.yaml --json --set out=one
curve >alone
: >parts
for part in 6,1,1 12,2,1 18,2,2 24,1,3 30,3,1; do
    steps=${part%%,*} rings=${part##*,} cp=${part#*,} cp=${cp%,*}
    run 0 "$LINESHAFT" train gpt2.yaml --json -n $((cp * rings)) --set "mesh.cp=$cp" --set "train.steps=$steps" \
        --set checkpoint.every=4 --set out=moved
    losses out >>parts
done
curve | tail -n 1 >>parts
alike "moved from mesh to mesh: it" 31 alone parts
run 0 "$LINESHAFT" ckpt verify moved

# A step that is not finite ends all ranks with one sentence, or is skipped by all.
ends_at_nan gpt2.yaml --set mesh.cp=2
skips_nan gpt2.yaml --set mesh.cp=2 --set train.reduce=ordered --set train.steps=6

# What cannot be shared, and what mesh.cp does not do.
run_file=gpt2.yaml
refused 'model.context is 24 but mesh.cp is 5 .*2 x mesh.cp chunks' --set mesh.cp=5
says 'With mesh.cp: 5, a context of 20 or 30 works.'
refused 'mesh.cp is 2, but the run has 3 ranks, which cannot be grouped so' -n 3 --set mesh.cp=2
refused 'mesh.cp is 2 and mesh.dp 2, but the run has 2 ranks: it needs 4' -n 2 --set mesh.cp=2 --set mesh.dp=2
refused 'sync.*mesh.cp' --set mesh.cp=2 --set sync=local
refused 'mesh.keys.*mesh.cp' --set mesh.keys=gather

#!/bin/sh
# tensor.sh -- ranks that hold one model between them (mesh.tp): losses of one process within 1e-4, with
# and without divided rows, several tp groups, a checkpoint for any mesh and from any mesh, and what
# cannot be.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >gpt2.yaml <<'YAML'
name: split
model: {family: gpt2, layers: 2, width: 48, heads: 4, context: 24, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 6, leaf: 2, group: 1}
train: {steps: 30, lr: 3e-3, schedule: constant, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3, reduce: fast}
checkpoint: {every: 0, keep: 2}
eval: {every: 15, sequences: 5, sample: "Once", sample_tokens: 4}
YAML
sed 's/^model:.*/model: {family: qwen3, layers: 2, width: 48, heads: 4, kv_heads: 2, context: 24}/' gpt2.yaml >qwen3.yaml
sed 's/^model:.*/model: {family: mixtral, layers: 2, width: 32, heads: 4, kv_heads: 2, context: 24, mlp: 40, experts: 4, experts_used: 2}/' \
    gpt2.yaml >mixtral.yaml

# near NAME: the last run's losses and validation against those in `alone`.
near() {
    curve >got
    alike "$1" 31 alone got
    [ ! -s err ] || fail "$1 says: $(cat err)"
}

# meshes: mesh.tp, number of tp groups, divided rows.
for model in gpt2 qwen3 mixtral; do
    run 0 "$LINESHAFT" train $model.yaml --json --set out=$model
    curve >alone
    field start parameters >alone.parameters
    case $model in
    gpt2) meshes="2,1,true 2,2,false 4,1,true" ;;
    qwen3) meshes="2,1,false 4,1,true" ;; # more ranks than key/value heads
    *) meshes="2,2,true 4,1,false" ;;
    esac
    for mesh in $meshes; do
        tp=${mesh%%,*} sequence=${mesh##*,} groups=${mesh#*,} groups=${groups%,*}
        run 0 "$LINESHAFT" train $model.yaml --json -n $((tp * groups)) --set "mesh.tp=$tp" --set "mesh.sp=$sequence" \
            --set "out=$model$mesh"
        near "$model on $mesh"
        [ "$(field start parameters)" = "$(cat alone.parameters)" ] || fail "$mesh counts a part of the model"
        [ "$(field start ranks)" = $((tp * groups)) ] || fail "start does not report the ranks"
        grep -q '"event":"sample"' out || fail "$mesh writes no sample"
    done
done
# mesh.tp starts its ranks by itself, and in ordered mode the same mesh gives the same bits.
same_bits gpt2.yaml --set mesh.tp=2 --set train.reduce=ordered --set train.steps=6
# With two ranks in a tp group and calls of one leaf neither more groups nor ZeRO change them.
for sets in mesh.dp=1 'mesh.dp=2 mesh.zero=3' 'mesh.dp=3 mesh.zero=1'; do
    # shellcheck disable=SC2046,SC2086 # words are what is wanted
    run 0 "$LINESHAFT" train gpt2.yaml --json --set mesh.tp=2 --set batch.group=1 --set train.reduce=ordered --set train.steps=6 \
        $(printf -- '--set %s ' $sets) --set "out=pair-$(echo "$sets" | tr ' ' -)"
    field summary weights_hash >>pairs
done
[ "$(sort -u pairs | wc -l)" = 1 ] || fail "tp groups of two have other bits on other meshes: $(cat pairs)"

# Weights begin alike on every mesh: the hash of a run of no step.
run 0 "$LINESHAFT" train qwen3.yaml --json --set train.steps=1 --set train.warmup=0 --set train.lr=1e-30 --set train.weight_decay=0 --set out=start1
field summary weights_hash >want
run 0 "$LINESHAFT" train qwen3.yaml --json --set train.steps=1 --set train.warmup=0 --set train.lr=1e-30 --set train.weight_decay=0 \
    --set mesh.tp=4 --set out=start4
field summary weights_hash | cmp -s want - || fail "other weights at the start"

# A checkpoint of any mesh is gone on with by any other.
run 0 "$LINESHAFT" train gpt2.yaml --json --set out=one
curve >alone
: >parts
for part in 6,1,1 12,2,1 18,2,2 24,1,3 30,4,1; do
    steps=${part%%,*} groups=${part##*,} tp=${part#*,} tp=${tp%,*}
    run 0 "$LINESHAFT" train gpt2.yaml --json -n $((tp * groups)) --set "mesh.tp=$tp" --set "train.steps=$steps" \
        --set checkpoint.every=4 --set out=moved
    losses out >>parts
done
curve | tail -n 1 >>parts
alike "moved from mesh to mesh: it" 31 alone parts
run 0 "$LINESHAFT" ckpt verify moved

# A rank of a tp group is killed, and none is replaced: the run ends, and goes on from the newest checkpoint when it is started again.
cat >kill.py <<'PY'
"""Kill rank 1 when a checkpoint is told."""
import json, os, signal, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=open("err", "w"))
pids = {}
for line in p.stdout:
    row = json.loads(line)
    if row["event"] == "rank":
        pids[row["rank"]] = row["pid"]
    if row["event"] == "checkpoint" and pids:
        os.kill(pids[1], signal.SIGKILL)
        pids = {}
sys.exit(p.wait() == 0)
PY
python3 kill.py "$LINESHAFT" train gpt2.yaml --json -n 4 --set mesh.tp=2 --set checkpoint.every=5 --set heal.mode=off --set out=killed ||
    fail "a lost rank does not end the run: $(cat err)"
says 'rank 1 was killed by signal 9'
run 0 "$LINESHAFT" train gpt2.yaml --json -n 4 --set mesh.tp=2 --set checkpoint.every=5 --set out=killed
curve >got
awk 'NR == FNR { want[$1] = $2; next } { d = $2 - want[$1]; if (d < 0) d = -d; bad += d > 1e-4 * $2; n++ }
    END { exit bad || n < 2 || n > 26 }' alone got || fail "after a loss: $(cat got)"

# A step that is not finite ends all ranks with one sentence, or is skipped by all.
ends_at_nan gpt2.yaml -n 2 --set mesh.tp=2
skips_nan gpt2.yaml -n 2 --set mesh.tp=2 --set train.steps=6

# What cannot be divided, and what mesh.tp does not do.
refused 'mesh.tp is 3 but model.heads is 4 .*: heads cannot be divided evenly among 3 ranks' gpt2.yaml --set mesh.tp=3
refused 'mesh.tp is 2, but the run has 3 ranks, which cannot be grouped so' gpt2.yaml -n 3 --set mesh.tp=2
refused 'mesh.tp is 2 and mesh.dp 2, but the run has 2 ranks: it needs 4' gpt2.yaml -n 2 --set mesh.tp=2 --set mesh.dp=2
refused 'train.optimizer.*mesh.tp' gpt2.yaml --set mesh.tp=2 --set train.optimizer=muon
refused 'mesh.sp.*mesh.tp' gpt2.yaml --set mesh.sp=false

#!/bin/sh
# pipeline.sh -- ranks that share the layers (mesh.pp): equal bits for any pipeline and schedule, checkpoints that
# move between meshes, refusals, steps that are not finite, a rank that dies, two hosts.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

# 7 leaves: two lines take 4 and 3. 5 layers: no number of stages below divides them.
cat >run.yaml <<'YAML'
name: line
model: {family: gpt2, layers: 5, width: 48, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 14, leaf: 2}
train: {steps: 12, lr: 3e-3, schedule: constant, warmup: 2, clip: 0.5, weight_decay: 0.1, seed: 3}
device: {threads: 1}
checkpoint: {every: 0, keep: 2}
eval: {every: 6, sequences: 5, sample: "Once", sample_tokens: 4}
YAML

# want NAME, same NAME: what a run told: losses, validation, weights, text samples.
told() {
    losses out
    echo "$(field summary val_loss) $(field summary weights_hash)"
    grep '"event":"sample"' out | sed 's/,"time":.*//'
}
same() {
    told >got
    cmp -s want got || fail "$1: $(diff want got | head -n 6)"
}

run 0 "$LINESHAFT" train run.yaml --json --set out=one
told >want
[ "$(field start pp)" = 1 ] || fail "one process is not one stage"

# mesh.pp starts as many ranks as it says.
run 0 "$LINESHAFT" train run.yaml --json --set mesh.pp=2 --set out=two
same "pp 2"
[ "$(field start pp) $(field start ranks) $(field start schedule)" = "2 2 1f1b" ] || fail "start does not tell the mesh"
for mesh in 2,gpipe,1,4,0 3,1f1b,1,3,0 4,1f1b,1,4,0 2,interleaved,2,4,1 3,zero-bubble,1,3,0 2,1f1b,1,4,2 2,interleaved,2,4,3 2,gpipe,1,4,3 2,zero-bubble,1,4,3; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$mesh" | tr , ' ')
    run 0 "$LINESHAFT" train run.yaml --json -n "$4" --set "mesh.pp=$1" --set "mesh.schedule=$2" --set "mesh.chunks=$3" --set "mesh.zero=$5" \
        --set "train.recompute=$([ "$2" = gpipe ] && echo full || echo none)" --set "out=o$mesh"
    same "$mesh"
    [ ! -s err ] || fail "$mesh says: $(cat err)"
done
# A Llama whose head is its own, in documents that are kept apart.
set -- --set model.family=llama --set model.kv_heads=1 --set model.tied=false --set data.isolate=true --set train.steps=6
cp want want.gpt2
run 0 "$LINESHAFT" train run.yaml --json "$@" --set out=llama
told >want
run 0 "$LINESHAFT" train run.yaml --json "$@" --set mesh.pp=3 --set out=llama3
same "llama, pp 3"
cp want.gpt2 want

# A checkpoint of any mesh is gone on with by any other. Steps up to N, pp, ranks, zero, schedule:
: >parts
for part in 3,2,2,0,1f1b 5,1,3,3,1f1b 6,2,4,1,interleaved 7,2,4,3,1f1b 8,2,4,2,gpipe 9,4,4,0,zero-bubble 10,2,4,3,interleaved 11,2,4,1,1f1b 12,3,3,0,1f1b; do
    # shellcheck disable=SC2046 # words are what is wanted
    set -- $(echo "$part" | tr , ' ')
    schedule=; [ "$2" = 1 ] || schedule="--set mesh.schedule=$5"
    fault=; case $1 in 6 | 8 | 12) fault=LINESHAFT_FAULT=train.blind@1+ ;; esac # the first rank collects and deals out
    # shellcheck disable=SC2086 # words are what is wanted
    run 0 env $fault "$LINESHAFT" train run.yaml --json -n "$3" --set "train.steps=$1" --set "mesh.pp=$2" --set "mesh.zero=$4" $schedule --set checkpoint.every=2 --set out=moved
    losses out >>parts
done
head -n 12 want | cmp -s - parts || fail "moved from mesh to mesh: $(head -n 12 want | diff - parts | head -n 6)"
[ "$(field summary weights_hash)" = "$(sed -n 13p want | cut -d ' ' -f 2)" ] || fail "moved from mesh to mesh: other weights"
run 0 "$LINESHAFT" ckpt verify moved
grep -rq 'pp=3 dp=1' moved/checkpoints || fail "the manifest does not tell the mesh"

# What cannot be, with what can.
no() {
    words=$1
    shift
    run 2 "$LINESHAFT" train run.yaml --set out=no "$@"
    says "$words"
    [ ! -e no ] || fail "a refused run leaves a folder"
}
no '5 layers cannot be cut into 6 stages' --set mesh.pp=6
says 'mesh.pp: 5 works'
no '5 layers cannot be cut into 6 stages' --set mesh.pp=3 --set mesh.schedule=interleaved
says 'mesh.chunks: 1 works'
no 'mesh.pp is 2, but the run has 3 ranks, which cannot be grouped so' -n 3 --set mesh.pp=2
says 'Give -n 2 or -n 4'
no 'mesh.pp is 2 and mesh.dp 2, but the run has 2 ranks: it needs 4' -n 2 --set mesh.pp=2 --set mesh.dp=2
no 'without a pipeline it has no meaning' --set mesh.schedule=gpipe
no 'only interleaved schedules have several chunks' --set mesh.pp=2 --set mesh.chunks=2
no 'only interleaved schedules have several chunks' --set mesh.pp=2 --set mesh.schedule=zero-bubble --set mesh.chunks=2
for set in mesh.shard=2 mesh.balance=auto 'mesh.weights=[1,2]' sync=local exchange.compress=bf16 train.optimizer=muon device.offload=disk; do
    reduce=; [ "$set" = exchange.compress=bf16 ] && reduce='--set train.reduce=fast'
    # shellcheck disable=SC2086 # words are what is wanted
    no "mesh.pp is 2" --set mesh.pp=2 --set "$set" $reduce
done

# A step that is not finite: one sentence, as alone; or it is skipped, as alone.
for pp in 1 2 3; do
    set -- --set mesh.pp=$pp
    [ $pp = 3 ] && set -- -n 4 --set mesh.pp=2 --set mesh.zero=3
    run 7 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml "$@" --set out=nan$pp
    sed -n 's/.*\(the gradient of.*\)/\1/p' err | head -n 1 >nan$pp.err
    run 0 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml --json "$@" --set train.nonfinite=skip \
        --set train.steps=5 --set out=skip$pp
    field summary weights_hash >skip$pp.hash
done
for pp in 2 3; do # 3: pipelines divide weights
    grep -q 'holds NaN' nan1.err && cmp -s nan1.err nan$pp.err || fail "other words: $(cat nan1.err nan$pp.err)"
    cmp -s skip1.hash skip$pp.hash || fail "other weights after a skipped step"
done

# A rank that dies ends the run where nobody heals (recover_tensor_pipeline.sh has the rest), and is named.
"$LINESHAFT" train run.yaml --json --set mesh.pp=2 --set train.steps=100000 --set heal.mode=off --set out=kill >out 2>err &
pid=$!
await_step kill 3 $pid
kill_rank kill 1
wait $pid
code=$?
[ $code = 137 ] || fail "a killed rank gave $code: $(cat err)"
grep -q '^lineshaft: error: rank 1 was killed by signal 9' err || fail "not said who: $(cat err)"

# Two hosts, with a stage on each.
need_hosts
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train run.yaml --json -n 2 --set mesh.pp=2 --set mesh.zero=1 --set out=hosts
cp hosts/events.jsonl out
same "two hosts"

#!/bin/sh
# local_sgd.sh -- sync: local: replicas train apart and agree: equal bits in two runs, exact resume, other numbers of
# replicas, one step between exchanges without momentum beside all-reduce, stop, kill, hosts, refusals.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >run.yaml <<'YAML'
name: apart
model: {family: gpt2, layers: 2, width: 32, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 14, leaf: 2, group: 1}
train: {steps: 24, lr: 3e-3, schedule: constant, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3}
checkpoint: {every: 0, keep: 2}
eval: {every: 6, sequences: 5, sample: "Once", sample_tokens: 4}
sync: local
local: {steps: 6}
YAML
# told: every loss, validation and the weights of the last run.
told() {
    losses out
    sed -n 's/.*"event":"eval","step":\([0-9]*\),"val_loss":\([^,]*\),.*/eval \1 \2/p' out
    field summary weights_hash
}

for delay in 0 2; do
    # Two runs with as many ranks: equal bits, whatever else the threads and ranks do.
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set local.delay=$delay --set out=one$delay
    told >want
    [ ! -s err ] || fail "3 replicas say: $(cat err)"
    [ "$(field start sync) $(field start ranks) $(field start sequences)" = "local 3 14" ] || fail "start does not tell"
    # One exchange for 6 steps; one more where the last step comes in the middle of the way.
    [ "$(field summary exchanges)" = 4 ] || fail "$(field summary exchanges) exchanges"
    # Validation falls where replicas meet.
    [ "$(grep -c '"event":"eval"' out)" = 4 ] || fail "not 4 validations: $(grep '"event":"eval"' out)"
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set local.delay=$delay --set device.threads=1 --set batch.group=2 \
        --set out=two$delay
    told >got
    cmp -s want got || fail "delay $delay: two runs differ: $(diff want got | head -n 4)"

    # Stopped where they meet, gone on with: the bits of a run that never stopped. A stop is heard at the next
    # meeting: here one that was asked for in the run's first steps.
    "$LINESHAFT" train run.yaml --json -n 3 --set local.delay=$delay --set train.steps=100000 --set checkpoint.every=6 \
        --set out=cut$delay >first 2>err &
    pid=$!
    await_step cut$delay 3 $pid
    kill -TERM $pid
    wait $pid
    code=$?
    [ $code = 130 ] || fail "SIGTERM gave $code: $(cat err)"
    last=$(losses first | tail -n 1 | cut -d ' ' -f 1)
    [ $((last % 6)) = $delay ] || fail "stopped at step $last, where replicas do not meet"
    steps=$((last + 12))
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set local.delay=$delay --set "train.steps=$steps" --set out=cut$delay
    [ ! -s err ] || fail "a run that goes on says: $(cat err)"
    [ "$(field start first_step)" = "$last" ] || fail "does not go on at step $last"
    losses first >got
    told >>got
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set local.delay=$delay --set "train.steps=$steps" --set out=all$delay
    told | grep -v "^eval" >want
    grep -v "^eval" got >got2
    cmp -s want got2 || fail "delay $delay: stopped and gone on with: $(diff want got2 | head -n 6)"
    run 0 "$LINESHAFT" ckpt verify cut$delay
done
[ -e cut2/checkpoints/replica-2 ] || fail "the third replica saved nothing"

# With one step between exchanges, no momentum, all of the way and SGD-like smallness of steps, replicas stay close to
# all-reduce; with more steps apart further from it, but not far.
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set sync=allreduce --set out=sum
sum=$(field summary val_loss)
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set local.steps=1 --set local.momentum=0 --set local.lr=1 \
    --set local.compress=none --set out=each
python3 -c "import sys; a, b = map(float, sys.argv[1:]); sys.exit(abs(a - b) > 0.05 * a)" "$sum" "$(field summary val_loss)" ||
    fail "agreeing in each step: validation loss $(field summary val_loss), all-reduce $sum"

# Other numbers of replicas go on too; a new one says what it begins with.
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set train.steps=30 --set out=one0
[ "$(field start first_step)" = 24 ] || fail "4 replicas do not go on where 3 stopped"
says 'replica 3 has no state of its own at step 24'
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set train.steps=36 --set out=one0
[ ! -s err ] || fail "2 replicas say: $(cat err)"
# A damaged state is not used, and said.
for file in one0/checkpoints/replica-1/objects/*/*.safetensors; do
    printf x | dd of="$file" bs=1 seek=200 conv=notrunc 2>/dev/null
done
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set train.steps=42 --set out=one0
says 'replica 1 has no state of its own at step 36'

# A rank that dies ends the others at once, also while they train apart.
"$LINESHAFT" train run.yaml --json -n 3 --set train.steps=1000000 --set local.steps=900000 --set out=kill >out 2>err &
pid=$!
await_step kill 3 $pid
kill_rank kill 1
wait $pid
code=$?
[ $code = 137 ] || fail "a killed rank gave $code: $(cat err)"

# One that is not finite: the replica that saw it speaks.
run 7 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml -n 2 --set out=nan
says 'holds NaN'

# Refused.
run 2 "$LINESHAFT" train run.yaml --set out=no
says 'sync is local, but the run has 1 rank'
run 2 "$LINESHAFT" train run.yaml -n 8 --set out=no
says '8 ranks cannot each have one of 7 leaves'
run 2 "$LINESHAFT" train run.yaml -n 2 --set out=one0 --set local.steps=7
says 'local.steps: 6 -> 7 (cannot change on resume)'
[ ! -e no ] || fail "a refused run left a folder"

# Between hosts: what is sent is what the exchange needs.
need_hosts
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set eval.every=0 --set out=here
told >want
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train run.yaml --json --set eval.every=0 --set out=hosts
cp hosts/events.jsonl out
told >got
cmp -s want got || fail "two hosts: $(diff want got | head -n 4)"
python3 -c "import sys
sent, exchanged = map(int, sys.argv[1:])
sys.exit(not exchanged <= sent <= 1.05 * exchanged + 20000)" "$(field summary sent_bytes)" "$(field summary exchange_bytes)" ||
    fail "sent $(field summary sent_bytes) bytes between hosts, of them $(field summary exchange_bytes) to agree"

#!/bin/sh
# param_server.sh -- sync: ps: servers keep the weights: one update per step beside all-reduce, the same bits for any number of
# servers, with rows of an embedding and without, exact resume; a rank that may run ahead, and how far; stop, kill,
# what is not finite, hosts, refusals.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER

cat >run.yaml <<'YAML'
name: served
model: {family: gpt2, layers: 2, width: 64, heads: 2, context: 32, dropout: 0.1, tied: false}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 14, leaf: 2, group: 1}
train: {steps: 18, lr: 3e-3, schedule: constant, warmup: 5, clip: 0.5, weight_decay: 0.1, seed: 3, reduce: fast}
checkpoint: {every: 0, keep: 2}
eval: {every: 6, sequences: 5, sample: "Once", sample_tokens: 4}
sync: ps
ps: {meet: 6}
YAML
# told: every loss, validation and the weights of the last run.
told() {
    losses out
    sed -n 's/.*"event":"eval","step":\([0-9]*\),"val_loss":\([^,]*\),.*/eval \1 \2/p' out
    field summary weights_hash
}
# near A B SHARE WHAT: two numbers differ by this share at most.
near() {
    python3 -c "import sys; a, b, d = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= d * abs(b))" "$1" "$2" "$3" ||
        fail "$4: $1 beside $2"
}

# Together: what all-reduce does, step by step.
run 0 "$LINESHAFT" train run.yaml --json -n 3 --set sync=allreduce --set out=sum
losses out >sum.losses
sum=$(field summary val_loss)
run 0 "$LINESHAFT" train run.yaml --json -n 3 --set checkpoint.every=5 --set out=one
told >want
[ ! -s err ] || fail "3 ranks say: $(cat err)"
[ "$(field start sync) $(field start ranks) $(field start sequences)" = "ps 3 14" ] || fail "start does not tell"
[ "$(field summary pushes) $(field summary ahead)" = "18 0" ] || fail "pushed $(field summary pushes) times, $(field summary ahead) ahead"
rows=$(field summary push_bytes)
losses out | paste -d ' ' - sum.losses >both
while read -r step loss _ other; do
    near "$loss" "$other" 1e-4 "loss of step $step beside all-reduce"
done <both
near "$(field summary val_loss)" "$sum" 1e-4 "validation beside all-reduce"
run 0 "$LINESHAFT" ckpt verify one

# Neither which ranks serve nor how rows are sent changes a bit, only the bytes.
for set in "--set ps.servers=1" "--set ps.servers=2 --set ps.sparse=false" "--set ps.sparse=false"; do
    # shellcheck disable=SC2086 # words are what is wanted
    run 0 "$LINESHAFT" train run.yaml --json -n 3 $set --set "out=x$set"
    told >got
    cmp -s want got || fail "$set: $(diff want got | head -n 4)"
done
[ "$rows" -lt "$(field summary push_bytes)" ] || fail "rows take $rows bytes, all of them $(field summary push_bytes)"

# A rank whose weight leaves it no sequence only serves.
for bound in 0 1; do
    run 0 "$LINESHAFT" train run.yaml --json -n 3 --set ps.servers=1 --set 'mesh.weights=[0.001,1,1]' --set ps.staleness=$bound \
        --set out=only$bound
    [ "$(field summary rank_sequences)" = "[0, 7, 7]" ] || fail "sequences: $(field summary rank_sequences)"
    [ $bound = 1 ] || near "$(field summary val_loss)" "$sum" 1e-4 "two workers and a server beside all-reduce"
    near "$(field summary loss)" 3 0.5 "the mean loss where ranks meet"
done

# A tied embedding, in bf16: its rows are the head's too, and travel with the rest.
for sync in ps allreduce; do
    run 0 "$LINESHAFT" train run.yaml --json -n 2 --set model.tied=true --set precision=bf16 --set sync=$sync --set out=tied$sync
    field summary val_loss >$sync.loss
done
near "$(cat ps.loss)" "$(cat allreduce.loss)" 1e-3 "bf16, tied"

# Stopped, and gone on with by as many ranks: the bits of a run that never stopped.
"$LINESHAFT" train run.yaml --json -n 3 --set train.steps=100000 --set out=cut >first 2>err &
pid=$!
await_step cut 3 $pid
kill -TERM $pid
wait $pid
code=$?
[ $code = 130 ] || fail "SIGTERM gave $code: $(cat err)"
last=$(losses first | tail -n 1 | cut -d ' ' -f 1)
run 0 "$LINESHAFT" train run.yaml --json -n 3 --set "train.steps=$((last + 5))" --set out=cut
[ "$(field start first_step)" = "$last" ] || fail "does not go on at step $last"
losses first >got
told >>got
run 0 "$LINESHAFT" train run.yaml --json -n 3 --set "train.steps=$((last + 5))" --set out=straight
told | grep -v "^eval" >want
grep -v "^eval" got >got2
cmp -s want got2 || fail "stopped and gone on with: $(diff want got2 | head -n 6)"
# And by others, on other servers.
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set ps.servers=2 --set train.steps=24 --set out=one
[ "$(field start first_step) $(field start ranks)" = "18 4" ] || fail "4 ranks do not go on where 3 stopped"
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set ps.staleness=3 --set train.steps=30 --set out=one
[ "$(field start first_step)" = 24 ] || fail "2 ranks do not go on where 4 stopped"

# A slow rank: another one may be ahead of it, by no more than the bound; without one, up to where they meet.
for bound in 2 -1; do
    run 0 env LINESHAFT_FAULT=train.slow.1@1+ "$LINESHAFT" train run.yaml --json -n 2 --set ps.staleness=$bound \
        --set ps.meet=9 --set checkpoint.every=9 --set out=slow$bound
    ahead=$(field summary ahead)
    most=$bound
    [ $bound -ge 0 ] || most=9
    { [ "$ahead" -gt 0 ] && [ "$ahead" -le $most ]; } || fail "staleness $bound: a rank was $ahead steps ahead"
    [ "$(grep -c '"event":"eval"' out)" = 2 ] || fail "not validated where ranks meet: $(grep '"event":"eval"' out)"
    near "$(field summary val_loss)" "$sum" 0.1 "staleness $bound beside all-reduce"
    run 0 "$LINESHAFT" ckpt verify slow$bound
done
# A stop is heard where they meet.
"$LINESHAFT" train run.yaml --json -n 2 --set ps.staleness=-1 --set train.steps=100000 --set out=stop >first 2>err &
pid=$!
await_step stop 3 $pid
kill -TERM $pid
wait $pid
code=$?
[ $code = 130 ] || fail "SIGTERM gave $code: $(cat err)"
last=$(losses first | tail -n 1 | cut -d ' ' -f 1)
[ $((last % 6)) = 0 ] || fail "stopped at step $last, where ranks do not meet"
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set ps.staleness=-1 --set "train.steps=$((last + 6))" --set out=stop
[ "$(field start first_step)" = "$last" ] || fail "does not go on at step $last"

# A rank that dies ends the others at once, whether they wait for its steps or not.
for bound in 0 -1; do
    "$LINESHAFT" train run.yaml --json -n 3 --set ps.staleness=$bound --set ps.meet=1000000 --set train.steps=1000000 \
        --set out=kill$bound >out 2>err &
    pid=$!
    await_step kill$bound 3 $pid
    kill_rank kill$bound 1
    wait $pid
    code=$?
    [ $code = 137 ] || fail "a killed rank gave $code: $(cat err)"
    grep -q '^lineshaft: error: rank 1 was killed by signal 9' err || fail "not said who: $(cat err)"
done

# A step that is not finite: the rank that saw it reports it, or the step counts for nothing.
run 7 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml -n 2 --set out=nan
says 'holds NaN'
for bound in 0 1; do
    run 0 env LINESHAFT_FAULT=train.nonfinite@3 "$LINESHAFT" train run.yaml --json -n 2 --set train.nonfinite=skip \
        --set ps.staleness=$bound --set out=skip$bound
    says '"kind":"nonfinite"'
    near "$(field summary val_loss)" "$sum" 0.1 "staleness $bound, a step skipped"
done

# Refused.
run 2 "$LINESHAFT" train run.yaml --set out=no
says 'sync is ps, but the run has 1 rank: there is nobody to serve'
run 2 "$LINESHAFT" train run.yaml -n 2 --set ps.servers=3 --set out=no
says 'ps.servers is 3, but the run has 2 ranks'
run 2 "$LINESHAFT" train run.yaml -n 15 --set out=no
says 'sync is ps, but 15 ranks cannot each have one of 14 sequences'
run 2 "$LINESHAFT" train run.yaml -n 2 --set train.reduce=ordered --set out=no
says 'Set train.reduce: fast, or sync: allreduce.'
run 2 "$LINESHAFT" train run.yaml -n 2 --set mesh.zero=1 --set out=no
says 'servers already divide the optimizer'
run 2 "$LINESHAFT" train run.yaml -n 2 --set sync=allreduce --set out=one
says 'sync: ps -> allreduce (cannot change on resume)'
[ ! -e no ] || fail "a refused run left a folder"

# Between hosts: the same bits, and what is sent is what was counted.
need_hosts
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set eval.every=0 --set out=here
told >want
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train run.yaml --json --set eval.every=0 --set out=hosts
cp hosts/events.jsonl out
told >got
cmp -s want got || fail "two hosts: $(diff want got | head -n 4)"
python3 -c "import sys
sent, pushed = map(int, sys.argv[1:])
sys.exit(not pushed <= sent <= 1.05 * pushed + 40000)" "$(field summary sent_bytes)" "$(field summary push_bytes)" ||
    fail "sent $(field summary sent_bytes) bytes between hosts, of them $(field summary push_bytes) to servers and workers"

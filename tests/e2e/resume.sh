#!/bin/sh
# Stopped by Ctrl-C, by kill -9, or never: the same losses and the same weights.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --json --set out=straight
losses out >want
want_hash=$(field summary weights_hash)

# Wait until events.jsonl of folder $1 tells of step $2 at least.
await_step() {
    i=0
    until grep -q "\"event\":\"step\",\"step\":$2," "$1/events.jsonl" 2>/dev/null; do
        i=$((i + 1))
        [ $i -lt 3000 ] || fail "step $2 of $1 never came"
        sleep 0.01
    done
}

# Ctrl-C: finishes the step, saves, exits 130; the next run goes on.
"$LINESHAFT" train run.yaml --json --set out=ctrlc >first 2>err &
pid=$!
await_step ctrlc 7
kill -INT $pid
wait $pid
[ $? = 130 ] || fail "Ctrl-C did not exit with 130"
grep -q "Run the same command again" err || fail "no hint how to go on"
run 0 "$LINESHAFT" train run.yaml --json --set out=ctrlc
losses first >got
losses out >>got
cmp want got || fail "losses differ after Ctrl-C"
[ "$(field summary weights_hash)" = "$want_hash" ] || fail "weights differ after Ctrl-C"

# kill -9 in the middle: at most the steps since the last checkpoint are done again, the same way.
"$LINESHAFT" train run.yaml --json --set out=killed >first 2>err &
pid=$!
await_step killed 23
kill -KILL $pid
wait $pid
run 0 "$LINESHAFT" train run.yaml --json --set out=killed
start=$(field start first_step)
[ "$start" = 10 ] || [ "$start" = 20 ] || fail "resumed at step $start"
losses out >got
awk -v s="$start" '$1 > s' want >tail-want
cmp tail-want got || fail "losses differ after kill -9"
[ "$(field summary weights_hash)" = "$want_hash" ] || fail "weights differ after kill -9"

# A reader that goes away stops the run, saved.
"$LINESHAFT" train run.yaml --json --set out=pipe --set train.steps=100000 2>err | head -n 5 >/dev/null
grep -q "is saved in" err || fail "a run whose reader went away did not say that it was saved"
run 0 "$LINESHAFT" ckpt verify pipe

# Another batch is another run: refused, with the difference, and nothing is lost.
run 2 "$LINESHAFT" train run.yaml --set out=straight --set batch.sequences=8
says "batch.sequences"
says "--fresh"
run 0 "$LINESHAFT" train run.yaml --json --set out=straight --fresh
[ "$(field start first_step)" = 0 ] || fail "--fresh resumed"
ls -d straight/checkpoints.before-* >/dev/null || fail "--fresh lost the earlier checkpoints"
# More steps may be asked for.
run 0 "$LINESHAFT" train run.yaml --json --set out=ctrlc --set train.steps=45
[ "$(field summary steps)" = 45 ] || fail "could not go on to 45 steps"

#!/bin/sh
# train_screen.sh -- what a person sees of a run, and what its first hours hold: a demonstration that was shortened, validation that stays on
# the screen, a run stopped with --fresh, one that was killed before its first save, checkpoints by the clock.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

# --- a run that --set shortens: the warm-up of its file gives way, and the screen and the events say so ---
run 0 "$LINESHAFT" train --set train.steps=6 --set model.layers=1 --set model.width=32 --set eval.sequences=2 --set eval.every=3 --set eval.sample= --set out=demo
says '0 steps of warm-up (train.warmup: 100 is longer than the run)'
says 'validation after step 3: loss '
says 'validation after step 6: loss '
grep -q '^validation after step 6: .* (before: ' out || fail "the second validation does not say what was before: $(cat out)"
grep -q 'the best' out && fail "a best evaluation is named where none is looked for: $(cat out)"
grep -Eq '^step 6/6  loss .*  lr [0-9.e-]+  grad [0-9.]+  epoch 0\.[0-9]+' out || fail "no rate, norm and epoch: $(cat out)"
says 'tok/s (mean); 6 steps'
grep -Eq '^memory  [0-9.]+ MiB needed \(-v: for what\)$' out || fail "not one line of memory: $(cat out)"
grep -q 'gradients  *[0-9.]* MiB' out && fail "the table of memory without -v: $(cat out)"
[ "$(field start warmup_written demo/events.jsonl)" = 100 ] || fail "the event does not say what was written"
run 0 "$LINESHAFT" train --set train.steps=7 --set model.layers=1 --set model.width=32 --set eval.sequences=2 --set out=demo -v
grep -q 'gradients  *[0-9.]* MiB' out || fail "no table of memory with -v: $(cat out)"
small_run
run 0 "$LINESHAFT" train run.yaml --set train.steps=12 --set train.warmup=5 --set out=twelve
says 'tok/s (median); 12 steps'
run 2 "$LINESHAFT" train run.yaml --set train.steps=4 --set train.warmup=5 --set out=both
says 'warm-up must end before the run does'

# --- Ctrl-C of a run that began with --fresh: the same words would begin anew ---
# stopped STARTS ARG...: at the third step or later, once events.jsonl has STARTS starts.
began() {
    grep -c '"event":"start"' halt/events.jsonl 2>/dev/null | grep -qx "$1" && tail -n 1 halt/events.jsonl | grep -q '"event":"step","step":[1-9][0-9]*[0-9,]'
}
stopped() {
    starts=$1
    shift
    "$LINESHAFT" train run.yaml --set train.steps=100000 --set eval.every=0 --set checkpoint.every=0 --set out=halt "$@" >out 2>err &
    pid=$!
    eventually began "$starts" || fail "the run does not begin: $(cat err)"
    kill -TERM $pid
    wait $pid
    [ $? = 130 ] || fail "an interrupted run ends otherwise: $(cat err)"
}
stopped 1
says 'Run the same command again to go on from there'
sed -i 's/"event":"start"/"event":"begin"/' halt/events.jsonl
stopped 1 --fresh
says 'Run the same command without --fresh to go on from there'
[ -f halt/events.before-1.jsonl ] || fail "--fresh mixes the events of two attempts"
[ "$(grep -Ec '"event":"(start|begin)"' halt/events.jsonl)" = 1 ] || fail "two attempts in one file"
stopped 2
[ "$(grep -c '"event":"start"' halt/events.jsonl)" = 2 ] || fail "a resumed run has lost its events"

# --- kill -9 before the first save: the next attempt says what was lost, and has events of its own ---
for n in 1 2; do
    "$LINESHAFT" train run.yaml -n $n --set train.steps=100000 --set eval.every=0 --set checkpoint.every=0 --set heal.mode=off --set out=killed$n >out 2>err &
    pid=$!
    await_step killed$n 5 $pid
    kill_rank killed$n 0
    wait $pid 2>/dev/null
    run 0 "$LINESHAFT" train run.yaml -n $n --set heal.mode=off --set train.steps=8 --set out=killed$n --json
    grep -Eq 'an earlier attempt came to step [0-9]+ and left no checkpoint' err || fail "nothing is said of the lost attempt: $(cat err)"
    [ "$(field incident kind)" = resume ] || fail "no incident tells of the lost attempt: $(cat out)"
    [ "$(grep -c '"event":"step"' killed$n/events.jsonl)" = 8 ] || fail "the events of two attempts are mixed"
    [ "$(grep -c '"event":"step"' killed$n/events.before-1.jsonl)" -ge 5 ] || fail "the events of the first attempt are gone"
done

# --- checkpoints by the clock: all ranks at one step, whatever divides the model ---
run 0 "$LINESHAFT" train run.yaml --json --set out=steps
field summary weights_hash >want
for mesh in 1 2 2,mesh.pp=2,batch.leaf=1 2,mesh.zero=1; do
    # shellcheck disable=SC2046 # words are what is wanted
    run 0 "$LINESHAFT" train run.yaml --json -n "${mesh%%,*}" $(echo "$mesh" | cut -s -d , -f 2- | sed 's/^/--set /;s/,/ --set /g') \
        --set checkpoint.every=0 --set checkpoint.minutes=0.0002 --set checkpoint.keep=100 --set "out=clock.$mesh"
    [ "$(grep -c '"event":"checkpoint"' out)" -ge 3 ] || fail "$mesh: no checkpoints by the clock: $(grep checkpoint out)"
    run 0 "$LINESHAFT" ckpt verify "clock.$mesh"
    case $mesh in *leaf*) continue ;; esac
    field summary weights_hash clock."$mesh"/events.jsonl >got
    cmp -s want got || fail "$mesh: checkpoints by the clock change bits"
done
run 0 "$LINESHAFT" train run.yaml --json --set checkpoint.every=0 --set out=last
[ "$(grep -c '"event":"checkpoint"' out)" = 1 ] || fail "checkpoint.every: 0 saves before the end"

# --- divergence is called so, whether numbers still hold it or not ---
run 0 "$LINESHAFT" train run.yaml --set train.clip=0 --set train.lr=2 --set train.warmup=0 --set train.schedule=constant --set train.steps=30 --set out=far
says "training diverged: the loss was 5."
run 7 "$LINESHAFT" train run.yaml --set train.clip=0 --set train.lr=90 --set train.warmup=0 --set train.schedule=constant --set out=farther
says "hint: Training diverged: lower train.lr"
run 0 "$LINESHAFT" train run.yaml --set out=near
grep -q diverged out err && fail "a run that learns is said to diverge: $(cat out err)"
exit 0

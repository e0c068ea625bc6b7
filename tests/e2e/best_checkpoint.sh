#!/bin/sh
# checkpoint.best and train.patience: the checkpoint of the lowest validation loss stays and has a name, and
# the run ends when it finds no lower one: after the same step on every mesh and after every restart.
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
model: {family: gpt2, layers: 2, width: 16, heads: 2, context: 32}
data: {text: [builtin:stories:4K], validation: 40%}
batch: {sequences: 8, leaf: 2}
train: {steps: 400, lr: 5e-2, schedule: constant, patience: 3}
eval: {every: 10, sequences: 8}
checkpoint: {every: 15, keep: 1}
YAML
evals() { # step and loss of every evaluation
    sed -n 's/^{"event":"eval","step":\([0-9]*\),"val_loss":\([^,]*\).*/\1 \2/p' out
}

run 0 "$LINESHAFT" train run.yaml --json --set out=one
[ "$(field summary stopped_by)" = patience ] || fail "stopped by $(field summary stopped_by)"
last=$(field summary steps) best=$(field summary best_step) want=$(field summary weights_hash)
[ "$last" -lt 400 ] || fail "it did not stop early"
[ $((last - best)) = 30 ] || fail "the best is of step $best, the last of step $last"
[ "$(evals | sort -g -k 2 | head -n 1 | cut -d ' ' -f 1)" = "$best" ] || fail "step $best is not the best: $(evals)"
[ "$(field summary best)" = one/best ] || fail "the summary does not name it"
evals >curve
# Each evaluation says which one was the best until then, and how many evaluations ago that was.
awk '!n++ || $2 < low { low = $2; at = $1; since = -1 } { print $1, at, ++since }' curve >judged
sed -n 's/^{"event":"eval","step":\([0-9]*\),.*"best_step":\([0-9]*\),"since_best":\([0-9]*\).*/\1 \2 \3/p' out | diff - judged ||
    fail "the events name another best evaluation"

# It is there, though two newer ones are, and has a name in every command.
run 0 "$LINESHAFT" ckpt list one
says "ok, best"
[ "$(grep -c " ok" out)" = 3 ] || fail "it keeps others: $(cat out)"
run 0 "$LINESHAFT" ckpt list one/best
grep -q "^ *$best " out || fail "it means another step: $(cat out)"
run 0 "$LINESHAFT" ckpt show one/checkpoints/best
run 0 "$LINESHAFT" ckpt prune one --keep 1
run 0 "$LINESHAFT" generate one/best -p Once -n 4 --temperature 0
run 0 "$LINESHAFT" export one/best hf
run 0 "$LINESHAFT" ckpt verify one/best
run 2 "$LINESHAFT" ckpt prune one/best
run 0 "$LINESHAFT" train run.yaml --set out=said
says "stopped early: 3 evaluations without a better validation loss"
grep -q "^validation after step $best: .*, the best so far\$" out || fail "step $best is not called the best so far: $(cat out)"
says ", the best is that of step $best (2 of 3 evaluations without a better one)"
says "best    step $best, validation loss"
says 'said/best'

# Started again it has nothing to do; with more patience it goes on.
run 0 "$LINESHAFT" train run.yaml --set out=one
says "nothing to do"
run 2 "$LINESHAFT" train run.yaml --set out=one -n two # a mistake is one here, too
says 'not "two"'
run 0 "$LINESHAFT" train run.yaml --json --set out=one --set train.patience=5
[ "$(field summary steps)" -ge $((last + 20)) ] || fail "more patience does not go on: $(field summary steps)"

# The same step on every mesh, and the same checkpoint.
for mesh in "-n 2" "-n 2 --set mesh.zero=1" "-n 2 --set mesh.zero=3" "--set mesh.pp=2" "-n 4 --set mesh.pp=2"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json --set out="m$mesh" $mesh
    [ "$(field summary weights_hash)" = "$want" ] || fail "other weights with $mesh"
    [ "$(field summary best_step)" = "$best" ] || fail "another best checkpoint with $mesh"
    run 0 "$LINESHAFT" ckpt list "m$mesh/best" --json
    grep -q "\"step\":$best,.*\"best\":true" out || fail "not kept with $mesh: $(cat out)"
done
for mesh in "--set mesh.tp=2" "--set mesh.cp=2" "-n 2 --set sync=local --set local.steps=5 --set train.reduce=fast" "-n 2 --set sync=ps --set train.reduce=fast"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json --set out="m$mesh" $mesh --set train.steps=60
    kept=$(field summary best_step)
    run 0 "$LINESHAFT" ckpt list "m$mesh/best" --json
    grep -q "\"step\":$kept," out || fail "not kept with $mesh: $(cat out)"
done

# Killed at any moment, it judges as one that never was: the record lies in the checkpoints.
saved() {
    grep -q '"event":"checkpoint"' log || ! kill -0 $pid 2>/dev/null
}
for _ in 1 2 3 4; do
    "$LINESHAFT" train run.yaml --json --set out=killed >log 2>err &
    pid=$!
    eventually saved || fail "no checkpoint: $(cat err)"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
done
run 0 "$LINESHAFT" train run.yaml --json --set out=killed
if [ "$(field summary stopped_by)" != "done" ]; then
    [ "$(field summary stopped_by)" = patience ] || fail "stopped by $(field summary stopped_by)"
fi
[ "$(field summary steps)" = "$last" ] || fail "after kills it ends with step $(field summary steps)"
[ "$(field summary weights_hash)" = "$want" ] || fail "after kills it has other weights"
[ "$(field summary best_step)" = "$best" ] || fail "after kills the best is $(field summary best_step)"

# A rank that dies takes nothing along.
run 0 env LINESHAFT_DRILL="rank=0,step=$((last - 15)),at=losses,do=kill" "$LINESHAFT" train run.yaml --json -n 2 --set out=dead
[ "$(field summary steps)" = "$last" ] || fail "without a rank it ends with step $(field summary steps)"
[ "$(field summary best_step)" = "$best" ] || fail "without a rank the best is $(field summary best_step)"

# Without patience: kept all the same, to the end.
run 0 "$LINESHAFT" train run.yaml --json --set out=kept --set train.patience=0 --set checkpoint.best=true --set train.steps=$((best + 50))
[ "$(field summary best_step)" -ge "$best" ] || fail "it keeps $(field summary best_step)"
[ "$(field summary stopped_by)" = steps ] || fail "stopped by $(field summary stopped_by)"

# What needs validation is refused without.
run_file=run.yaml
refused "without validation text the loss cannot be measured" --set data.validation=0
refused "it counts validations during the run" --set eval.every=0
refused "validation during the run finds the best checkpoint" --set eval.every=0 --set train.patience=0 --set checkpoint.best=true
run 2 "$LINESHAFT" generate hf/best -p x
mkdir empty
run 0 "$LINESHAFT" train run.yaml --set out=none --set train.patience=0 --set train.steps=20
grep -q 'the best' out && fail "it names a best one where none is looked for: $(cat out)"
run 2 "$LINESHAFT" generate none/best -p x
says 'no checkpoint in "none/checkpoints" is marked as the best'

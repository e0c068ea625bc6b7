#!/bin/sh
# train.epochs: how long a run is follows from its data, on every mesh, with a batch ramp, after a resume.
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
model: {family: gpt2, layers: 2, width: 16, heads: 2, context: 32}
data: {text: [builtin:stories:8K], validation: 0}
batch: {sequences: 8, leaf: 2}
train: {epochs: 2, lr: 1e-2}
checkpoint: {every: 20}
eval: {every: 0}
YAML

run 0 "$LINESHAFT" train run.yaml --json --set out=one
windows=$(field start epoch_sequences)
steps=$(field start total_steps)
[ "$steps" = $(((2 * windows + 7) / 8)) ] || fail "2 epochs of $windows sequences are not $steps steps"
[ "$(field summary steps)" = "$steps" ] || fail "the run has not $steps steps"
[ "$(field summary stopped_by)" = epochs ] || fail "stopped by $(field summary stopped_by)"
want=$(field summary weights_hash)
run 0 "$LINESHAFT" train run.yaml --set out=said
says "2 epochs of $windows sequences: $steps steps"

# As many steps, written as a number: the same run, schedule and all.
run 0 "$LINESHAFT" train run.yaml --json --set out=steps --set train.steps="$steps"
[ "$(field summary weights_hash)" = "$want" ] || fail "$steps steps are another run"

# Any mesh; and in two processes, one after the other.
for mesh in "-n 2" "-n 2 --set mesh.zero=3" "--set mesh.pp=2"; do
    # shellcheck disable=SC2086
    run 0 "$LINESHAFT" train run.yaml --json --set out="m$mesh" $mesh
    [ "$(field summary weights_hash)" = "$want" ] || fail "other weights with $mesh"
done
"$LINESHAFT" train run.yaml --json --set out=two >out 2>err &
pid=$!
eventually grep -q '"event":"checkpoint"' out || fail "no checkpoint: $(cat err)"
kill -INT $pid
wait $pid
run 0 "$LINESHAFT" train run.yaml --json --set out=two
[ "$(field summary weights_hash)" = "$want" ] || fail "a resumed run has other weights"

# More epochs go on from there; a ramp makes more steps of the same samples.
run 0 "$LINESHAFT" train run.yaml --json --set out=one --set train.epochs=3
[ "$(field start first_step)" = "$steps" ] || fail "it begins at step $(field start first_step)"
[ "$(field summary steps)" = $(((3 * windows + 7) / 8)) ] || fail "3 epochs are $(field summary steps) steps"
run 0 "$LINESHAFT" train run.yaml --json --set out=ramp --set batch.ramp=10 --set batch.ramp_from=2
epoch=$(field step epoch)
python3 -IS -c "import sys; e = float(sys.argv[1]); sys.exit(not 2 <= e < 2 + 8 / $windows)" "$epoch" ||
    fail "with a ramp it ends at epoch $epoch"

# What contradicts itself is refused.
unset run_file
sed 's/epochs: 2,/epochs: 2, steps: 5,/' run.yaml >both.yaml
run_file=both.yaml refused "each of them says how long the run is"
sed 's/epochs: 2,/epochs: 2, warmup: 10000,/' run.yaml >long.yaml
run 2 "$LINESHAFT" train long.yaml --set out=long
says "warm-up must end before the run does"
grep -q "2 epochs are $steps steps" err || fail "it does not say how many steps: $(cat err)"
sed 's/epochs: 2/num_train_epochs: 2/' run.yaml >name.yaml
run_file=name.yaml refused "Write epochs: 2."

# A refusal of another setting speaks of that, not of what follows from the data.
run 2 "$LINESHAFT" train run.yaml --set out=said --set train.lr=1e-3
says "train.lr: 0.01 -> 0.001"
! grep -q "train.steps\|train.warmup" err || fail "it names what has not changed: $(cat err)"

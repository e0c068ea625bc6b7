#!/bin/sh
# offload.sh -- moments in a file: the same bits on any mesh, a resident memory without them, and what is said where
# they cannot lie.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

# 9.5M parameters: a moment of 36 MiB, of which 4 MiB are updated at a time.
cat >run.yaml <<'YAML'
name: offload
model: {family: gpt2, layers: 12, width: 256, heads: 4, context: 16}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 4, leaf: 1, group: 1}
train: {steps: 4, lr: 1e-3, schedule: constant, warmup: 1, seed: 3}
checkpoint: {every: 0, keep: 2}
eval: {every: 0, sequences: 2}
YAML

run 0 "$LINESHAFT" train run.yaml --json --set out=memory
losses out >want
field summary weights_hash >>want
here=$(field summary peak_bytes)

same() {
    losses out >got
    field summary weights_hash >>got
    cmp -s want got || fail "$1: $(diff want got)"
}
# Both moments but a chunk of each are gone from memory: 72.9 MiB less 8. What is left is predicted.
less() {
    peak=$(field summary peak_bytes) ledger=$(field summary ledger_bytes)
    [ $((peak + 60000000)) -lt "$1" ] || fail "$2: the peak is $peak bytes, and $1 with moments in memory"
    [ $((peak * 100)) -lt $((ledger * 110)) ] || fail "$2: the peak is $peak bytes, the ledger has $ledger"
}
run 0 "$LINESHAFT" train run.yaml --json --set device.offload=disk --set out=disk
same "moments on disk"
case $LINESHAFT in
*asan* | *tsan*) ;; # what a sanitizer keeps is nobody's ledger
*) less "$here" "moments on disk" ;;
esac
[ -z "$(find disk -name '*spill*')" ] || fail "a file is left behind"

# Checkpoints are written from a file too, and a run goes on with moments here or there.
run 0 "$LINESHAFT" train run.yaml --json --set checkpoint.every=1 --set train.steps=2 --set out=saved
here=$(field summary peak_bytes)
losses out >first
run 0 "$LINESHAFT" train run.yaml --json --set checkpoint.every=1 --set device.offload=disk --set out=saved
[ "$(field start first_step)" = 2 ] || fail "does not go on at step 2"
{ cat first && losses out && field summary weights_hash; } >got
cmp -s want got || fail "went on with moments on disk: $(diff want got)"
case $LINESHAFT in
*asan* | *tsan*) ;;
*) less "$here" "checkpoints of moments on disk" ;;
esac

# With ranks each has a file for what it owns.
mkdir scratch
for mesh in 2,1,world 4,3,2; do
    n=${mesh%%,*} shard=${mesh##*,} zero=${mesh#*,} zero=${zero%,*}
    run 0 "$LINESHAFT" train run.yaml --json -n "$n" --set "mesh.zero=$zero" --set "mesh.shard=$shard" --set device.offload=disk \
        --set device.offload_to=scratch --set "out=ranks$mesh"
    same "$n ranks, zero $zero, shard $shard"
done

# Where they cannot lie.
run 3 "$LINESHAFT" train run.yaml --set device.offload=disk --set device.offload_to=nowhere --set out=no
says 'cannot make a file in "nowhere" for first moments: No such file or directory'
says 'Let device.offload_to name a folder with room for them, or set device.offload: none.'
mkdir small
mount -t tmpfs -o size=40m tmpfs small 2>/dev/null || {
    echo "no file system can be mounted here: a full one is not tried"
    exit 0
}
trap 'umount small' EXIT
run 3 "$LINESHAFT" train run.yaml --set device.offload=disk --set device.offload_to=small --set out=no
says 'cannot take 36.5 MiB in "small" for second moments (3.'
says 'No space left on device'

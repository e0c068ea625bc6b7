#!/bin/sh
# meshes.sh -- a few of the meshes of bench/meshes.sh, drawn by another seed where LINESHAFT_MESHES_SEED is set: each of them on one
# model, in few steps.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
unset LINESHAFT_CARRIER
seed=${LINESHAFT_MESHES_SEED:-7}
for model in gpt2 qwen3 mixtral olmoe olmo2 phi3; do
    LINESHAFT=$LINESHAFT python3 "$LINESHAFT_ROOT/bench/meshes.py" --work "$PWD" --meshes 2 --seed "$seed" --ranks 4 --steps 4 $model >out 2>err ||
        fail "seed $seed: $(cat out err)"
    grep -q '^axes: pp, dp.*tp' out || fail "not the axes: $(cat out)"
    seed=$((seed + 1))
done

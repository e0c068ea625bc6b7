#!/bin/sh
# meshes.sh [MESHES] -- the table of products of axes: 80 generated meshes of up to 8 ranks, 8 models on each, beside one process.
# 30 steps in ordered mode, with clipping, dropout where the model has it, and weight decay; after the first step the run is stopped
# and goes on from its checkpoint.
#   pp, dp, zero, recompute, schedules   every loss and the hash of the weights must have the same bits
#   tp, sp, cp, keys, ep                 every loss within 1e-4 of it, and the first gradient of every tensor within 1e-3 of its norm
# Which axes there are, and how wide they can be, is asked of the program (`config schema`), and so is whether it takes a mesh
# (`config check`, `train`): what it refuses is drawn again. Models without experts leave mesh.ep out. Printed are the largest
# deviations of every mesh.
#   SEED=1  RANKS=8  STEPS=30  MODELS="gpt2 llama qwen3 mixtral qwen3_moe olmoe olmo2 phi3"  LINESHAFT=PROGRAM
#   HAVE="pp ep zero": only meshes that set all of these
# Ends with 1 when a mesh strays. No figure of speed: it may run on a busy machine (about twenty minutes).
set -eu
cd "$(dirname "$0")/.."
if [ -z "${LINESHAFT:-}" ]; then
    make --no-print-directory build/release/lineshaft >/dev/null
    LINESHAFT=$PWD/build/release/lineshaft
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # words are what is wanted
LINESHAFT=$LINESHAFT python3 bench/meshes.py --work "$work" --meshes "${1:-80}" --seed "${SEED:-1}" --ranks "${RANKS:-8}" \
    --steps "${STEPS:-30}" --have "${HAVE:-}" ${MODELS:-gpt2 llama qwen3 mixtral qwen3_moe olmoe olmo2 phi3}

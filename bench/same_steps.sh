#!/bin/sh
# same_steps.sh TEXT -- the same mathematics as PyTorch: after one step the state (weights and both
# moments) is handed to a double-precision PyTorch model, both take the same 59 batches of TEXT with
# AdamW, clipping and weight decay, and the losses are compared. Must agree within 1e-4.
set -eu
[ $# = 1 ] || { echo "usage: $0 TEXT" >&2; exit 2; }
text=$(realpath "$1")
cd "$(dirname "$0")/.."
peer=${XDG_CACHE_HOME:-$HOME/.cache}/lineshaft/peers/bin/python
[ -x "$peer" ] || { echo "same_steps.sh: no PyTorch environment (bench/peers/setup.sh makes one)" >&2; exit 1; }
make --no-print-directory all >/dev/null
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/run.yaml" <<YAML
model: {family: gpt2, layers: 4, width: 128, heads: 4, context: 64}
data: {text: ["$text"], tokenizer: bytes, validation: 0.1, shuffle: false}
batch: {sequences: 12, leaf: 4}
train: {steps: 60, lr: 1e-3, schedule: constant, warmup: 0, beta2: 0.99, weight_decay: 0.1, clip: 1.0}
checkpoint: {every: 1, keep: 100}
eval: {every: 0}
YAML
./lineshaft train "$dir/run.yaml" --json --set out="$dir/run" >"$dir/events"
"$peer" bench/peers/same_steps.py "$text" "$dir/run/checkpoints" "$dir/events"

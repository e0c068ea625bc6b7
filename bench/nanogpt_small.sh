#!/bin/sh
# nanogpt_small.sh TEXT [SEED...] -- nanoGPT's small task on TEXT (tinyshakespeare): training time until the
# validation loss over the whole validation part is 1.88, PyTorch (eager and torch.compile) with the same model and
# settings in turn with us, where its environment exists. Both evaluate every 100 steps; the time of evaluating is
# counted on neither side.
#   LR=2e-3  STEPS=2000  THREADS=(all)  GOAL=1.88  JSON=FILE  BUSY=1 (do not wait for a quiet machine)
set -eu
[ $# -ge 1 ] || { echo "usage: $0 TEXT [SEED...]" >&2; exit 2; }
text=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
make --no-print-directory lineshaft >/dev/null
python3 -B bench/nanogpt_small.py "$text" "$@"

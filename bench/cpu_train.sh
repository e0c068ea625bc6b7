#!/bin/sh
# cpu_train.sh [10m|124m|both] [tune] -- training speed on the CPU, fp32: our trainer (ordered and fast) and
# PyTorch (eager with its fused attention, and torch.compile), the same model, batch and threads, one process each,
# taken in turn on a quiet machine. Medians over rounds of the median step, and of the fastest quarter of all steps;
# warm-up and compiling do not count.
# With tune, PyTorch is run in all the ways that bench/cpu_train.py knows, to find its best.
# OTHER=PROGRAM: another build of ours instead of PyTorch, and our speed against it.
#   ROUNDS=5  STEPS=(12 for 10m, 6 for 124m)  THREADS=2  JSON=FILE  BUSY=1 (do not wait for a quiet machine)
set -eu
cd "$(dirname "$0")/.."
for word in "$@"; do
    case $word in
    10m | 124m | both | tune) ;;
    *)
        echo "usage: $0 [10m|124m|both] [tune]" >&2
        exit 2
        ;;
    esac
done
make --no-print-directory lineshaft >/dev/null
# What the peer needs to be at its best: an allocator that keeps its memory, and a compiler for torch.compile.
sh tools/deps.sh libtcmalloc-minimal4 g++ || echo "cpu_train.sh: going on without them"
python3 -B bench/cpu_train.py "$@"

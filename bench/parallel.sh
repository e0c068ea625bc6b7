#!/bin/sh
# parallel.sh [ranks] [ways] [hosts] -- training speed with several ranks, 10M model, fp32, sides taken in turn on a quiet machine.
#   ranks  2 ranks x 1 thread (zero 0 and 1, ordered and fast; tp 2) against 1 rank x 2 threads
#   ways   every way to be parallel over data, four ranks on this machine, fast: time and memory beside zero 0
#   hosts  lab hosts x 1 rank x 1 thread against PyTorch's DistributedDataParallel over Gloo between hosts with the
#          same links, and against the longer one of work without exchange and gradients on the links; needs root
#   ROUNDS=5  STEPS=12  HOSTS=2,4  LINK=1gbit  OURS="fast 0" (modes and stages)  JSON=FILE  BUSY=1 (do not wait for a quiet machine)
set -eu
cd "$(dirname "$0")/.."
for word in "$@"; do
    case $word in
    ranks | ways | hosts) ;;
    *)
        echo "usage: $0 [ranks] [ways] [hosts]" >&2
        exit 2
        ;;
    esac
done
make --no-print-directory lineshaft >/dev/null
python3 -B bench/parallel.py "$@"

#!/bin/sh
# compress.sh -- training speed between lab hosts with each kind of exchange.compress, 10M model, fp32, fast sums, 1 rank x 1 thread a
# host, sides taken in turn on a quiet machine; needs root.
#   ROUNDS=5  STEPS=12  HOSTS=4  LINK=100mbit  ZERO=0  KINDS=none,bf16,int8,topk  JSON=FILE  BUSY=1 (do not wait for a quiet machine)
set -eu
cd "$(dirname "$0")/.."
[ $# = 0 ] || {
    echo "usage: $0" >&2
    exit 2
}
make --no-print-directory lineshaft >/dev/null
LINK=${LINK:-100mbit} exec python3 -B bench/compress.py

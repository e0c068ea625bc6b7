#!/bin/sh
# balance.sh -- one of several ranks at half speed: the time of a step with equal slices and with mesh.balance: auto,
# beside what the ideal split would take. 10M model, one thread per rank; sides taken in turn on a quiet machine.
#   RANKS=2 (no more than cores)  ROUNDS=3  STEPS=30  REDUCE=ordered,fast  JSON=FILE  BUSY=1 (do not wait for a quiet machine)
# The rank is slowed in earnest by a fault point (train.slow.N), which sleeps as long as the rank has computed; only
# the program of the tests has it, which is compiled as the released one but for that.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory test FILTER=fault_without_a_turn >/dev/null
python3 -B bench/balance.py

#!/bin/sh
# heal_peer.sh [ROUNDS] -- one of four workers killed with -9 in the middle of training: seconds until the next step is
# finished, ours and torchrun's (gloo, CPU, its workers started anew) in turn, ROUNDS (3) times, a new job each.
# Ours goes on at the step it was at; what torchrun's workers had learned is lost, unless they saved it themselves.
#   WAIT=120 (seconds for torchrun)  BUSY=1 (do not wait for a quiet machine)
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory lineshaft >/dev/null
python3 -B bench/heal_peer.py "$@"

#!/bin/sh
# A run that blows up stops and names the tensor, or skips the step, as it is told.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 7 "$LINESHAFT" train run.yaml --json --set train.lr=1e20 --set train.min_lr=1 --set train.clip=0
says "transformer."
says "train.lr"
run 0 "$LINESHAFT" train run.yaml --json --set train.lr=1e20 --set train.min_lr=1 --set train.clip=0 \
    --set train.nonfinite=skip --set out=skip
grep -q '"skipped":true' out || fail "no skipped step is told"
grep -q '"event":"incident"' out || fail "no incident is told"

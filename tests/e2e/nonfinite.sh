#!/bin/sh
# A run that blows up stops and names the tensor, or skips the step, as it is told.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 7 env LINESHAFT_FAULT=train.nonfinite@5 "$LINESHAFT" train run.yaml --json
says "transformer."
says "train.lr"
says "in step 5"
run 0 env LINESHAFT_FAULT=train.nonfinite@5 "$LINESHAFT" train run.yaml --json \
    --set train.nonfinite=skip --set out=skip
[ "$(grep -c '"skipped":true' out)" = 1 ] || fail "no skipped step is told"
[ "$(field incident step)" = 5 ] || fail "the incident is not told of step 5"
grep -q '"step":5,.*"skipped":true' out || fail "another step is told as skipped"

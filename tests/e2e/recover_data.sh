#!/bin/sh
# recover_data.sh -- ranks that die, and a run that goes on: same losses, same weights, one incident, nothing left.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
losses >want
hash=$(field summary weights_hash)

# A rank is killed: it is started again, from the memory of the others. There is nothing on disk that could be read.
go 0 again 3 12:KILL:1 --set checkpoint.every=0
same again
[ "$(incident again kind) $(incident again ranks) $(incident again restarted) $(incident again source)" = "lost 3 1 memory" ] ||
    fail "the incident: $(grep incident again.jsonl)"
[ "$(incident again generation) $(incident again redone)" = "2 0" ] || fail "not the second generation, or steps done again"
awk -v d="$(incident again detection_ms)" -v s="$(incident again seconds)" 'BEGIN { exit !(d >= 0 && d < 2000 && s > 0 && s < 20) }' ||
    fail "noticed or healed late: $(grep incident again.jsonl)" # 50 ms and 2 s on a quiet machine: bench/heal_kills.sh prints them
grep -q 'rank 1.* killed by signal 9 (Killed)' again.err || fail "not said who died: $(cat again.err)"
grep -q 'read\|resum' again.err && fail "something was read again: $(cat again.err)"

# The first rank, which has the run folder; twice: then the others go on without it. A checkpoint is the same afterwards.
go 0 first 3 11:KILL:0,23:KILL:0
same first
[ "$(incident first ranks) $(incident first lost) $(incident first generation)" = "2 1 3" ] || fail "$(grep incident first.jsonl)"
run 0 "$LINESHAFT" ckpt verify first
# Down to one; two at once; the next while they meet again.
go 0 few 3 9:KILL:1+2 --set heal.restarts=0
same few
[ "$(incident few ranks)" = 1 ] || fail "$(grep incident few.jsonl)"
go 0 twice 4 9:KILL:3,@1:KILL:0+1 --set heal.restarts=2
same twice
# All of them: from the checkpoint, and it says so.
go 0 all 3 saved:KILL:0+1+2
[ "$(field summary weights_hash all.jsonl)" = "$hash" ] || fail "all: other weights"
[ "$(incident all source) $(incident all restarted)" = "checkpoint 3" ] || fail "$(grep incident all.jsonl)"
[ "$(incident all step)" -ge 10 ] || fail "$(grep incident all.jsonl)"
# One that was stopped counts as dead after a while, and cannot come back.
go 0 stopped 3 12:STOP:2 --set heal.wait=3
same stopped
[ "$(incident stopped restarted)" = 1 ] || fail "$(grep incident stopped.jsonl)"
incident stopped text | grep -q 'rank 2 was killed by signal 9 .*, because it had been stopped for [0-9]* s (heal.wait)' || fail "$(incident stopped text)"

# Too few ranks; a mistake that comes again; a rank that crashes again and again.
go 137 least 3 12:KILL:1 --set heal.restarts=0 --set heal.min_ranks=3
grep -q 'rank 1 was killed by signal 9' least.err || fail "$(cat least.err)"
LINESHAFT_FAULT=train.nonfinite@12+ go 7 nan 3 none
[ "$(grep -c 'step 12' nan.err)" -ge 1 ] || fail "$(cat nan.err)"
grep -q incident nan.jsonl && fail "numbers that are not finite were healed: $(cat nan.jsonl)"

# Ctrl-C after a loss: saved, and gone on with.
go 130 asked 3 12:KILL:1,20:INT:0
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set out=asked
[ "$(field summary weights_hash)" = "$hash" ] || fail "gone on with: other weights"
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done

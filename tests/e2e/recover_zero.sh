#!/bin/sh
# recover_zero.sh -- ranks that have parts of the state die (mesh.zero), and their peers have copies: no step is lost, nothing is
# read; owner and peer at once: the newest checkpoint, and a warning says what that costs.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
sed -i 's/steps: 40/steps: 28/' run.yaml
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
losses >want
hash=$(field summary weights_hash)
# healed OUT RANKS: its last incident, from memory, without a step that was done again.
healed() {
    [ "$(incident "$1" source) $(incident "$1" redone) $(incident "$1" ranks)" = "memory 0 $2" ] || fail "$1: $(grep incident "$1.jsonl")"
    ! grep -q 'read\|resum' "$1.err" || fail "$1: something was read again: $(cat "$1.err")"
}

# Every stage: started again; then gone on without, so that parts are cut otherwise; the first rank.
for zero in 1 2 3; do
    go 0 "z$zero" 3 "12:KILL:1,22:KILL:$((zero % 3))" --set mesh.zero=$zero
    same "z$zero"
    healed "z$zero" "$([ "$zero" = 1 ] && echo 2 || echo 3)"
done
# More ranks than there are parts: one has none, saves nothing and is nobody's loss.
go 0 empty 4 12:KILL:2 --set mesh.zero=3
same empty
healed empty 4
[ "$(grep -c '"incident"' empty.jsonl)" = 1 ] || fail "empty: $(grep incident empty.jsonl)"
# The copies cost what they should: 4 bytes for each element of the own parts in every step, and the moments once.
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set out=bytes --set mesh.zero=1
elements=$(field start parameters)
sent=$(field summary buddy_bytes)
python3 -c "import sys
sent, elements, steps = map(int, sys.argv[1:])
own = sent // (4 * steps + 8)
assert sent == own * (4 * steps + 8) and elements / 3 < own < elements, (sent, own, elements)" "$sent" "$elements" 28 || fail "bytes"
grep -q '"buddy":' out || fail "not in the ledger: $(grep start out)"
# In groups the replicas have it, and nothing is sent.
go 0 replicas 4 12:KILL:1 --set mesh.zero=3 --set mesh.shard=2
same replicas
healed replicas 4
grep -q 'buddy_bytes' replicas.jsonl && fail "replicas were sent copies"
go 0 odd 4 12:KILL:1 --set mesh.zero=2 --set mesh.shard=2 --set heal.restarts=0
same odd
healed odd 3

# While they meet again another one dies, at each point of it.
for point in told moved copied; do
    LINESHAFT_FAULT="train.recover.$point.2@1=kill" go 0 "$point" 4 12:KILL:1 --set mesh.zero=1 --set heal.restarts=0
    same "$point"
    healed "$point" 2
done
# Two at once, of whom neither has the other's copy.
go 0 apart 4 12:KILL:1+3 --set mesh.zero=1
same apart
healed apart 4
# Owner and peer: from the checkpoint. Without copies: likewise.
go 0 both 4 saved:KILL:1+2 --set mesh.zero=1
[ "$(field summary weights_hash both.jsonl)" = "$hash" ] || fail "both: other weights"
[ "$(incident both source) $(incident both ranks)" = "checkpoint 4" ] || fail "both: $(grep incident both.jsonl)"
[ "$(incident both step)" -ge 10 ] || fail "both: $(grep incident both.jsonl)"
go 0 none 3 saved:CONT:1,25:KILL:1 --set mesh.zero=1 --set heal.buddies=off
[ "$(field summary weights_hash none.jsonl)" = "$hash" ] || fail "none: other weights"
[ "$(incident none source)" = checkpoint ] || fail "none: $(grep incident none.jsonl)"
[ $(($(incident none step) + $(incident none redone))) -ge 25 ] || fail "none: $(grep incident none.jsonl)"
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done

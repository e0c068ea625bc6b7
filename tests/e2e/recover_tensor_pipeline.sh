#!/bin/sh
# recover_tensor_pipeline.sh -- ranks that hold one model between them die (mesh.pp, mesh.tp): from a replica's memory where there is one, else from disk, in
# the processes that live; for good: a model less, or the end with a sentence. Losses and weights are those of the undisturbed run.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
sed -i 's/steps: 40/steps: 28/' run.yaml
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
losses >want
hash=$(field summary weights_hash)
# healed OUT SOURCE FROM RANKS: its last incident.
healed() {
    [ "$(incident "$1" source) $(incident "$1" from) $(incident "$1" ranks)" = "$2 $3 $4" ] || fail "$1: $(grep incident "$1.jsonl")"
}

# Two pipelines: a stage from the other's; then the first rank, which has the run folder.
go 0 pipelines 4 12:KILL:2,20:KILL:0 --set mesh.pp=2
same pipelines
healed pipelines memory replica 4
[ "$(incident pipelines redone) $(incident pipelines generation)" = "0 3" ] || fail "$(grep incident pipelines.jsonl)"
grep -q 'rank 2 was killed by signal 9 .*started again; 4 ranks go on after step [0-9]*, from the memory of a replica' pipelines.err ||
    fail "pipelines: $(cat pipelines.err)"
grep -q 'read\|resum' pipelines.err && fail "pipelines: something was read again: $(cat pipelines.err)"
run 0 "$LINESHAFT" ckpt verify pipelines
# One pipeline: no other rank has the stage. And moments that pipelines divide, without copies.
for mesh in "one 2 mesh.zero=0 auto" "divided 4 mesh.zero=1 off"; do
    # shellcheck disable=SC2086 # words are what is wanted
    set -- $mesh
    go 0 "$1" "$2" saved:CONT:0,15:KILL:1 --set mesh.pp=2 --set "$3" --set "heal.buddies=$4"
    losses "$1/events.jsonl" | sort -nu | cmp -s want - || fail "$1: other losses"
    [ "$(field summary weights_hash "$1.jsonl")" = "$hash" ] || fail "$1: other weights"
    healed "$1" checkpoint disk "$2"
    [ $(($(incident "$1" step) + $(incident "$1" redone))) -ge 15 ] || fail "$1: $(grep incident "$1.jsonl")"
done
# With copies another pipeline has them: a rank of each stage; and a rank with its peer.
go 0 copies 4 12:KILL:1,20:KILL:0+3 --set mesh.pp=2 --set mesh.zero=1 --set heal.buddies=on
same copies
healed copies memory buddy 4
[ "$(field summary buddy_bytes copies.jsonl)" -gt 0 ] || fail "copies: no bytes: $(grep summary copies.jsonl)"
go 0 twice 4 saved:KILL:0+1 --set mesh.pp=2 --set mesh.zero=1
[ "$(field summary weights_hash twice.jsonl)" = "$hash" ] || fail "twice: other weights"
healed twice checkpoint disk 4
# A stage and its replica at once: disk. A rank of each stage: memory.
go 0 both 4 saved:KILL:2+3 --set mesh.pp=2
[ "$(field summary weights_hash both.jsonl)" = "$hash" ] || fail "both: other weights"
healed both checkpoint disk 4
go 0 cross 4 12:KILL:0+3 --set mesh.pp=2
same cross
healed cross memory replica 4
# While they meet again another one dies.
LINESHAFT_DRILL="rank=1,at=recover.transfer,do=kill" go 0 meets 4 12:KILL:2 --set mesh.pp=2
same meets
healed meets memory replica 4
[ "$(incident meets generation)" = 3 ] || fail "meets: $(grep incident meets.jsonl)"

# For good: a line less, while who was in it waits; and when that was all, the end.
go 0 less 4 12:KILL:3 --set mesh.pp=2 --set heal.restarts=0
same less
healed less memory replica 2
[ "$(incident less lost)" = 1 ] || fail "less: $(grep incident less.jsonl)"
run 0 "$LINESHAFT" ckpt verify less
# One that was started again has nothing when the others shrink: it waits, and comes back as the first rank.
go 0 back 4 8:KILL:2,12:KILL:0+2,saved:KILL:1 --set mesh.pp=2 --set checkpoint.every=5
[ "$(field summary weights_hash back.jsonl)" = "$hash" ] || fail "back: other weights"
healed back checkpoint disk 2
go 137 end 2 12:KILL:1 --set mesh.pp=2 --set heal.restarts=0
grep -q '1 of the 2 ranks that share one model' end.err || fail "end: $(cat end.err)"
grep -q 'error: rank 1 was killed by signal 9' end.err || fail "end: $(cat end.err)"

# Tp groups: the bits of the same mesh, undisturbed; shrunk or from disk too, as far as the mesh is the same.
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.tp=2 --set out=plain-tensor
losses >want
hash=$(field summary weights_hash)
go 0 tensor 4 12:KILL:1,20:KILL:0 --set mesh.tp=2
same tensor
healed tensor memory replica 4
go 0 whole 4 saved:KILL:0+2 --set mesh.tp=2
[ "$(field summary weights_hash whole.jsonl)" = "$hash" ] || fail "whole: other weights"
healed whole checkpoint disk 4
go 0 fewer 4 12:KILL:0 --set mesh.tp=2 --set heal.restarts=0
healed fewer memory replica 2
losses fewer/events.jsonl >got
paste -d ' ' want got | awk '{ d = $2 - $4; if (d < 0) d = -d; bad += $1 != $3 || d > 1e-4 * $2 } END { exit bad || NR != 28 }' ||
    fail "fewer: other losses: $(paste -d ' ' want got)"
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done

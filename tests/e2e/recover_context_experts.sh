#!/bin/sh
# recover_context_experts.sh -- ranks that share sequences (mesh.cp) or divide experts (mesh.ep) die, also with tp groups and pipelines, and on a mesh that was chosen (mesh: auto):
# from memory where somebody has it, else from disk; for good: as many ranks as belong together. The bits are those of the same mesh
# undisturbed; with fewer cp or ep groups losses are near.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
sed -i 's/steps: 40/steps: 28/' run.yaml
# healed OUT SOURCE FROM RANKS: its last incident.
healed() {
    [ "$(incident "$1" source) $(incident "$1" from) $(incident "$1" ranks)" = "$2 $3 $4" ] || fail "$1: $(grep incident "$1.jsonl")"
}
# near OUT: every step once, with a loss that is the wanted one but for rounding.
near() {
    losses "$1/events.jsonl" >got
    paste -d ' ' want got | awk '{ d = $2 - $4; if (d < 0) d = -d; bad += $1 != $3 || d > 1e-4 * $2 } END { exit bad || NR != 28 }' ||
        fail "$1: other losses: $(paste -d ' ' want got) $(cat "$1.err")"
}

# A mesh that was chosen is kept: what one process gives, in ordered mode.
run 0 "$LINESHAFT" train run.yaml --json --set out=alone
losses >want
hash=$(field summary weights_hash)
go 0 chosen 3 12:KILL:1,20:KILL:0 --set mesh=auto
same chosen
[ "$(incident chosen source) $(incident chosen ranks) $(incident chosen redone) $(incident chosen generation)" = "memory 3 0 3" ] ||
    fail "chosen: $(grep incident chosen.jsonl)" # a replica, or the copy at a peer where the mesh divides
[ "$(grep -c '"event":"mesh"' chosen.jsonl)" = 1 ] || fail "chosen: the choice is told more than once"
go 0 piped 4 12:KILL:2 --set mesh=auto --set mesh.pp=2 --set mesh.zero=0
same piped
healed piped memory replica 4
go 0 short 4 12:KILL:3 --set mesh=auto --set mesh.pp=2 --set mesh.zero=0 --set heal.restarts=0
same short
healed short memory replica 2
go 0 moments 3 12:KILL:1 --set mesh=auto --set mesh.zero=1
same moments
healed moments memory buddy 3

# Rings: every rank has everything, or its part and another's.
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.cp=2 --set out=rings
losses >want
hash=$(field summary weights_hash)
go 0 ring 4 12:KILL:1,20:KILL:0 --set mesh.cp=2
same ring
healed ring memory replica 4
grep -q 'read\|resum' ring.err && fail "ring: something was read again: $(cat ring.err)"
run 0 "$LINESHAFT" ckpt verify ring
go 0 divided 4 12:KILL:2 --set mesh.cp=2 --set mesh.zero=1
same divided
healed divided memory buddy 4
# All but one at once: it has everything.
go 0 last 4 12:KILL:0+1+3 --set mesh.cp=2
same last
healed last memory replica 4
# For good: a cp group less, and one rank that waits; it takes the place of the next that dies.
go 0 fewer 4 8:KILL:3,18:KILL:0 --set mesh.cp=2 --set heal.restarts=0
near fewer
healed fewer memory replica 2
[ "$(grep -c '"event":"incident"' fewer.jsonl)" = 2 ] || fail "fewer: $(grep incident fewer.jsonl)"
go 137 end 2 12:KILL:1 --set mesh.cp=2 --set heal.restarts=0
grep -q '1 of the 2 ranks that share one model .*share sequences' end.err || fail "end: $(cat end.err)"

# Cp groups of tp groups: another rank of the cp group has the same part. Tp groups that divide moments keep copies; a rank and its peer at once: disk.
for mesh in "square mesh.cp=2 mesh.tp=2 replica" "tensor mesh.tp=2 mesh.zero=1 buddy"; do
    # shellcheck disable=SC2086 # words are what is wanted
    set -- $mesh
    run 0 "$LINESHAFT" train run.yaml --json -n 4 --set "$2" --set "$3" --set out="plain-$1"
    losses >want
    hash=$(field summary weights_hash)
    go 0 "$1" 4 12:KILL:1,20:KILL:0 --set "$2" --set "$3"
    same "$1"
    healed "$1" memory "$4" 4
done
run 0 "$LINESHAFT" ckpt verify tensor
[ "$(field summary buddy_bytes tensor.jsonl)" -gt 0 ] || fail "tensor: no bytes to buddies: $(grep summary tensor.jsonl)"
go 0 owner 4 saved:KILL:0+2 --set mesh.tp=2 --set mesh.zero=1
[ "$(field summary weights_hash owner.jsonl)" = "$hash" ] || fail "owner: other weights"
healed owner checkpoint disk 4
# While they meet again another one dies, whose copy is elsewhere; the first rank, which is new, does not tell again what the one before it told.
LINESHAFT_DRILL="rank=1,at=recover.transfer,do=kill" go 0 meets 4 12:KILL:0 --set mesh.tp=2 --set mesh.zero=1
same meets
healed meets memory buddy 4
[ "$(incident meets generation)" = 3 ] || fail "meets: $(grep incident meets.jsonl)"
# For good: a cp group of tp groups less, and three ranks that wait.
go 0 eight 8 8:KILL:5 --set mesh.cp=2 --set mesh.tp=2 --set heal.restarts=0
near eight
healed eight memory replica 4

# Experts come from a rank that has the same ones; where none has, from disk.
sed -i 's/^model:.*/model: {family: mixtral, layers: 2, width: 32, heads: 2, context: 32, mlp: 32, experts: 4, experts_used: 2}/' run.yaml
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.ep=2 --set out=experts
losses >want
hash=$(field summary weights_hash)
go 0 expert 4 12:KILL:1,20:KILL:0 --set mesh.ep=2
same expert
healed expert memory replica 4
run 0 "$LINESHAFT" ckpt verify expert
go 0 lone 4 12:KILL:2 --set mesh.ep=2 --set heal.restarts=0
near lone
healed lone memory replica 2
go 0 gone 4 saved:KILL:1+3 --set mesh.ep=2
[ "$(field summary weights_hash gone.jsonl)" = "$hash" ] || fail "gone: other weights"
healed gone checkpoint disk 4
# Their moments, which are divided.
go 0 shares 4 12:KILL:1,20:KILL:0 --set mesh.ep=2 --set mesh.zero=1
near shares
healed shares memory buddy 4
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done

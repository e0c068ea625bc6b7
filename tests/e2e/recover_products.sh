#!/bin/sh
# recover_products.sh -- ranks die that have a part of a model (mesh.pp, mesh.tp, mesh.ep) and divide gradients and weights of it with others (mesh.zero 2 and
# 3, mesh.shard): the others go on in their processes, with losses and weights of the same mesh undisturbed.
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
sed -i 's/steps: 40/steps: 28/' run.yaml
# healed OUT SOURCE FROM RANKS: its last incident.
healed() {
    [ "$(incident "$1" source) $(incident "$1" from) $(incident "$1" ranks)" = "$2 $3 $4" ] || fail "$1: $(grep incident "$1.jsonl")"
}
# plain RANKS ARG...: the undisturbed run.
plain() {
    n=$1
    shift
    run 0 "$LINESHAFT" train run.yaml --json -n "$n" "$@" --set out=plain --fresh
    losses >want
    hash=$(field summary weights_hash)
}
# back OUT RANKS ARG...: a rank dies when something is saved, and all load it.
back() {
    out=$1 n=$2
    shift 2
    go 0 "$out" "$n" saved:CONT:0,15:KILL:1 "$@"
    losses "$out/events.jsonl" | sort -nu | cmp -s want - || fail "$out: other losses"
    [ "$(field summary weights_hash "$out.jsonl")" = "$hash" ] || fail "$out: other weights"
    healed "$out" checkpoint disk "$n"
    [ $(($(incident "$out" step) + $(incident "$out" redone))) -ge 15 ] || fail "$out: $(grep incident "$out.jsonl")"
}

plain 1
# Pipelines keep copies for each other: a rank of each stage, also at once; a rank with its peer; without copies.
go 0 copies 4 12:KILL:2,20:KILL:0+3 --set mesh.pp=2 --set mesh.zero=3 --set heal.buddies=on
same copies
healed copies memory buddy 4
[ "$(field summary buddy_bytes copies.jsonl)" -gt 0 ] || fail "copies: no bytes: $(grep summary copies.jsonl)"
run 0 "$LINESHAFT" ckpt verify copies
# While they meet again another one dies.
LINESHAFT_DRILL="rank=3,at=recover.transfer,do=kill" go 0 meets 4 12:KILL:0 --set mesh.pp=2 --set mesh.zero=2
same meets
healed meets memory buddy 4
go 0 twice 4 saved:KILL:0+1 --set mesh.pp=2 --set mesh.zero=2
[ "$(field summary weights_hash twice.jsonl)" = "$hash" ] || fail "twice: other weights"
healed twice checkpoint disk 4
back pipelines 4 --set mesh.pp=2 --set mesh.zero=3 --set heal.buddies=off
# Tp groups do not.
plain 4 --set mesh.tp=2
back tensor 4 --set mesh.tp=2 --set mesh.zero=2
# For good: a tp group less; one has the moments that two had.
go 0 fewer 4 saved:CONT:0,15:KILL:1 --set mesh.tp=2 --set mesh.zero=3 --set heal.restarts=0
healed fewer checkpoint disk 2
sed -i 's/^model:.*/model: {family: mixtral, layers: 2, width: 32, heads: 2, context: 32, mlp: 32, experts: 4, experts_used: 2}/' run.yaml
plain 4 --set mesh.ep=2 --set mesh.zero=3
back experts 4 --set mesh.ep=2 --set mesh.zero=3
plain 8 --set mesh.ep=2 --set mesh.pp=2 --set mesh.zero=3
back posts 8 --set mesh.ep=2 --set mesh.pp=2 --set mesh.zero=3
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done

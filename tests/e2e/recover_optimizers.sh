#!/bin/sh
# recover_optimizers.sh -- LAMB and Muon need all ranks in the middle of an update: a rank that dies before, in or behind one is replaced from memory all the
# same, and no step is lost (mesh.zero: 1, heal.buddies).
. "$LINESHAFT_ROOT/tests/lib.sh"
small_run
sed -i 's/steps: 40/steps: 16/' run.yaml
# healed OUT RANKS: its last incident, from memory, without a step that was done again.
healed() {
    [ "$(incident "$1" source) $(incident "$1" redone) $(incident "$1" ranks)" = "memory 0 $2" ] || fail "$1: $(grep incident "$1.jsonl")"
    ! grep -q 'read\|resum' "$1.err" || fail "$1: something was read again: $(cat "$1.err")"
}

for optimizer in lamb muon; do
    run 0 "$LINESHAFT" train run.yaml --json --set out="$optimizer" --set train.optimizer=$optimizer
    losses >want
    hash=$(field summary weights_hash)
    common="--set train.optimizer=$optimizer --set mesh.zero=1"
    # shellcheck disable=SC2086 # several words
    {
        # started again; then gone on without, with parts that are cut otherwise
        go 0 "$optimizer-killed" 3 "5:KILL:1,10:KILL:0" $common
        same "$optimizer-killed"
        healed "$optimizer-killed" 3
        go 0 "$optimizer-fewer" 3 "5:KILL:2" $common --set heal.restarts=0
        same "$optimizer-fewer"
        healed "$optimizer-fewer" 2
        # in the middle of an update, when the others wait for what it has
        LINESHAFT_FAULT="train.recover.update.3@4=kill" go 0 "$optimizer-update" 4 none $common --set heal.restarts=0
        same "$optimizer-update"
        healed "$optimizer-update" 3
        # and while they make it again
        LINESHAFT_FAULT="train.recover.moved.2@1=kill" go 0 "$optimizer-moved" 4 5:KILL:1 $common --set heal.restarts=0
        same "$optimizer-moved"
        healed "$optimizer-moved" 2
    }
done
# What goes element by element is replaced with any stage, in the middle of an update too: its owner's or a peer's copy makes it.
for optimizer in lion sgd; do
    rate=$([ $optimizer = sgd ] && echo 0.1 || echo 1e-3)
    run 0 "$LINESHAFT" train run.yaml --json --set out="$optimizer" --set train.optimizer=$optimizer --set train.lr="$rate"
    losses >want
    hash=$(field summary weights_hash)
    common="--set train.optimizer=$optimizer --set train.lr=$rate"
    # shellcheck disable=SC2086 # several words
    for zero in 0 1 3; do
        go 0 "$optimizer-$zero" 3 "5:KILL:1,10:KILL:0" $common --set mesh.zero=$zero
        same "$optimizer-$zero"
        healed "$optimizer-$zero" 3
    done
    # shellcheck disable=SC2086
    {
        go 0 "$optimizer-fewer" 3 "5:KILL:2" $common --set mesh.zero=2 --set heal.restarts=0
        same "$optimizer-fewer"
        healed "$optimizer-fewer" 2
        go 0 "$optimizer-pp" 4 "5:KILL:1" $common --set mesh.pp=2 --set mesh.zero=1
        same "$optimizer-pp"
        healed "$optimizer-pp" 4
    }
done
hash=$(field summary weights_hash muon/events.jsonl)
# A single rank left: LAMB's parts are like AdamW's; Muon's are not, and the newest checkpoint serves.
go 0 muon-one 2 saved:KILL:1 --set train.optimizer=muon --set mesh.zero=1 --set heal.restarts=0
[ "$(field summary weights_hash muon-one.jsonl)" = "$hash" ] || fail "muon-one: other weights"
[ "$(incident muon-one source) $(incident muon-one ranks)" = "checkpoint 1" ] || fail "muon-one: $(grep incident muon-one.jsonl)"
hash=$(field summary weights_hash lamb/events.jsonl)
losses lamb/events.jsonl >want
go 0 one 2 5:KILL:1 --set train.optimizer=lamb --set mesh.zero=1 --set heal.restarts=0
same one
healed one 1
for f in *.err; do ! grep -q 'ERROR\|Sanitizer' "$f" || fail "$f: $(cat "$f")"; done

#!/bin/sh
# drill.sh -- faults on purpose: a few of each kind are survived, verdicts can fail, and mistakes are answered.
. "$LINESHAFT_ROOT/tests/lib.sh"
export TMPDIR="$PWD"

run 0 "$LINESHAFT" drill --only kill.losses,kill.update,kill.first,kill.transfer,error,stall.short,stall.pause,flip,save.torn,save.fsync,save.kill,disk --count 1 --steps 8 --json
python3 - <<'PY' || fail "$(cat out)"
import json
rows = [json.loads(line) for line in open("out")]
faults = {r["name"]: r for r in rows if r["event"] == "fault"}
end = rows[-1]
assert end["event"] == "drill" and end["failed"] == 0 and end["skipped"] == 0 and end["passed"] == len(faults) == 14, end
assert all(r["weights_hash"] == end["weights_hash"] for r in faults.values())
for name in "kill.losses", "kill.update", "kill.first", "kill.transfer", "error.losses":
    r = faults[name]
    assert r["source"] == "memory" and r["redone"] == 0 and r["starts"] == 1 and r["incidents"] >= 1, r
    assert r["recovered_ms"] > 0 and r["detected_ms"] is not None, r
for name in "stall.short", "stall.pause":
    assert faults[name]["incidents"] == 0 and faults[name]["starts"] == 1, faults[name]
for name in "flip.weight", "flip.gradient":
    r = faults[name]
    assert r["incidents"] == 1 and r["starts"] == 1 and r["redone"] > 0 and r["source"] in ("checkpoint", "start"), r
assert faults["save.torn"]["incidents"] == 1 and faults["save.torn"]["starts"] == 1
assert faults["save.fsync"]["incidents"] >= 1 and faults["save.fsync"]["starts"] == 1
for name in "disk.object", "disk.manifest":
    assert faults[name]["starts"] == 2 and faults[name]["source"] == "restart", faults[name]
PY
[ -z "$(ls -d lineshaft-drill-* 2>/dev/null)" ] || fail "a folder was left: $(ls)"

# One rank: it loads its checkpoint. A table for people.
run 0 "$LINESHAFT" drill -n 1 --only kill.backward,preempt,stall.stop --steps 8
says 'stall.stop      skip'
says 'needs two ranks or more'
says '2 passed, 0 failed, 1 skipped: pass means the same weights, bit for bit'
grep -q '^kill.backward   pass .* checkpoint$' out || fail "$(cat out)"
! grep -q ' $' out || fail "spaces at the end of a line: $(cat -A out)"

# Not survived: another learning rate behind the fault would be other weights; here a rank that may not be missed.
run 1 "$LINESHAFT" drill --only kill.losses --steps 8 --set heal.restarts=0 --set heal.min_ranks=3
grep -q '^kill.losses     FAIL .*started again' out || fail "$(cat out)"
says '1 of 1 faults were not survived'
says 'is in "'
ls -d lineshaft-drill-*/kill.losses-0 >/dev/null 2>&1 || fail "what it left is gone"

run 0 "$LINESHAFT" drill --list
grep -q '^kill.backward   kill -9 of one rank between forward and backward' out || fail "$(cat out)"
run 2 "$LINESHAFT" drill --only kill,fire
says '"fire", which is not a fault; there are: kill.load'
run 2 "$LINESHAFT" drill --steps 3
run 2 "$LINESHAFT" drill nowhere.yaml
run 2 "$LINESHAFT" drill --set checkpoint.every=100
says 'a drill needs at least 8 steps'

# A bit that flips in one rank's memory, of its weights or of the sum of gradients: replicas differ, and nothing of it is saved.
small_run
for point in losses update; do
    run 7 env LINESHAFT_DRILL="rank=1,step=3,at=$point,do=flip,tensor=transformer.h.1.mlp.c_fc.weight" "$LINESHAFT" train run.yaml --json -n 2 \
        --set train.steps=6 --set checkpoint.every=0 --set heal.compare=0 --set out=flip-$point
    says 'replicas differ'
done
# Unless they compare what they have: then it is done again, without the bit.
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set train.steps=6 --set checkpoint.every=0 --set out=no-flip
field summary weights_hash >want
run 0 env LINESHAFT_DRILL="rank=1,step=3,at=losses,do=flip,tensor=transformer.h.1.mlp.c_fc.weight" "$LINESHAFT" train run.yaml --json -n 2 \
    --set train.steps=6 --set checkpoint.every=0 --set out=found
grep -q '"kind":"corrupt"' out || fail "no incident: $(grep incident out)"
field summary weights_hash >got
cmp -s want got || fail "a flipped bit is in the weights: $(cat want got)"
run 2 env LINESHAFT_DRILL="step=3,at=update,do=flip,tensor=nobody" "$LINESHAFT" train run.yaml -n 2 --set out=flip
says 'cannot flip a bit of "nobody": it is no tensor'

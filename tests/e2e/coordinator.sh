#!/bin/sh
# coordinator.sh -- the coordinator's process is killed, and nothing else: its agent starts it again, it has everything from its log, and
# no step is lost. In steady state, in a view change at each of its moments, while checkpoints are committed; with the first of several
# nodes alone, and with three hosts. A job of one node has no such process.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
export LINESHAFT_STATE="$PWD/state"
small_run
SET="--set train.steps=60"
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json --set out=alone $SET
losses >want
hash=$(field summary weights_hash)

# On one node the agent decides: there is no process that these faults could kill, and no log.
export LINESHAFT_FAULT="coordinator.heard@1=kill" LINESHAFT_STATE="$PWD/unused"
# shellcheck disable=SC2086
go 0 inside 3 12:KILL:1,30:KILL:2 $SET
unset LINESHAFT_FAULT
export LINESHAFT_STATE="$PWD/state"
same inside
[ "$(grep -c '"kind":"lost"' inside.jsonl)" = 2 ] || fail "inside: $(grep incident inside.jsonl)"
[ ! -e unused ] || fail "inside: left: $(ls unused)"

# A node that others may join has it.
(umask 077; head -c 32 /dev/urandom >job.secret)
SET="$SET --nodes 1 --listen 127.0.0.1:0 --secret job.secret"

# told OUT: an incident says so, nobody met anew because of it, no step was done again, and nothing is left of it.
told() {
    grep '"kind":"coordinator"' "$1.jsonl" >died || fail "$1: no incident: $(cat "$1.err")"
    grep -q '"action":"training went on; no step was lost".*"source":"memory","from":"log","redone":0,' died || fail "$(cat died)"
    ! grep '"event":"incident"' "$1.jsonl" | grep -q '"redone":[1-9]' || fail "$1: $(grep incident "$1.jsonl")"
    grep -q 'warning: the coordinator (pid [0-9]*) was killed by signal 9 (Killed); it is started again' "$1.err" || fail "$(cat "$1.err")"
    [ -z "$(find state -name "*.wal*")" ] || fail "$1: left: $(ls state)"
}

# Twice, in steady state.
# shellcheck disable=SC2086
go 0 steady 4 12:KILL:c,30:KILL:c $SET
same steady
told steady
[ "$(grep -c '"kind":"coordinator"' steady.jsonl)" = 2 ] || fail "$(grep incident steady.jsonl)"
! grep -q '"kind":"lost"' steady.jsonl || fail "somebody was lost: $(grep incident steady.jsonl)"
[ "$(incident steady generation)" = 1 ] || fail "another generation: $(grep incident steady.jsonl)"

# With a rank, whose loss it has to handle; and stopped, when it has to: it is not waited for for ever.
# shellcheck disable=SC2086
go 0 both 4 12:KILL:c+1,30:KILL:1+c $SET
same both
told both
[ "$(grep -c '"kind":"lost"' both.jsonl)" = 2 ] || fail "$(grep incident both.jsonl)"
[ "$(field incident ranks both.jsonl)" = 3 ] || fail "$(grep incident both.jsonl)"

# At every single thing that it is told, before and after it is in its log, before and after it has said what follows from it: the first
# view, a rank that dies and is started again, the next view, the end.
for at in heard@2 logged@1 taken@1 told@1; do
    export LINESHAFT_FAULT="coordinator.$at=kill"
    # shellcheck disable=SC2086
    go 0 "${at%@*}" 3 12:KILL:1 $SET --set checkpoint.every=5
    same "${at%@*}"
    told "${at%@*}"
    [ "$(grep -c 'the coordinator (pid [0-9]*) was killed' "${at%@*}.err")" -gt 3 ] || fail "$at: $(cat "${at%@*}.err")"
    [ "$(grep -c '"kind":"lost"' "${at%@*}.jsonl")" = 1 ] || fail "$at: $(grep incident "${at%@*}.jsonl")"
    run 0 "$LINESHAFT" ckpt verify "${at%@*}"
    unset LINESHAFT_FAULT
done

# While something is saved all the time: one manifest for each step, and they verify.
# shellcheck disable=SC2086
go 0 saves 4 10:KILL:c,11:KILL:c,20:KILL:c,21:KILL:c+2,40:KILL:c $SET --set checkpoint.every=1 --set checkpoint.keep=100
same saves
told saves
run 0 "$LINESHAFT" ckpt verify saves
run 0 "$LINESHAFT" ckpt list saves --json
python3 - <<'PY' || fail "not one manifest for each step: $(cat out)"
import glob, re
steps = re.findall(r'"step": *(\d+), *"ok": *true', open("out").read())
assert len(steps) > 10 and len(steps) == len(set(steps)) == len(glob.glob("saves/checkpoints/step-*.json")), steps
PY

# One that dies all the time ends the job.
export LINESHAFT_FAULT="coordinator.heard@1=kill"
# shellcheck disable=SC2086
go 10 hopeless 2 none $SET
unset LINESHAFT_FAULT
grep -q 'the coordinator of this job died 10 times in a row: it was killed by signal 9' hopeless.err || fail "$(cat hopeless.err)"
[ -z "$(ls state)" ] || fail "left: $(ls state)"

# On three hosts: only the first one has it.
need_hosts
cp "$LINESHAFT_ROOT/tests/e2e/recover_hosts.py" drive.py
export LINESHAFT
cat >host.sh <<'SH'
#!/bin/sh
me=$LINESHAFT_LAB_NODE secret=$PWD/job.secret first=${LINESHAFT_LAB_ADDRESSES%% *}:7001
echo $$ >"$OUT.pid$me"
if [ "$me" = 0 ]; then
    # shellcheck disable=SC2086
    exec "$LINESHAFT" train run.yaml --json -n 2 --nodes 3 --listen "$first" --secret "$secret" --wait 120 --set out="$OUT" $SET \
        >"$OUT.fifo" 2>"$OUT.err0"
fi
exec "$LINESHAFT" agent --join "$first" --secret "$secret" --wait 120 -n 1 >/dev/null 2>"$OUT.err$me"
SH
chmod +x host.sh
SET="--set train.steps=60 --set heal.dead=30"
export SET
# lab OUT PLAN...
lab() {
    OUT=$1
    export OUT
    mkfifo "$OUT.fifo"
    shift
    "$LINESHAFT" lab --nodes 3 -- ./host.sh >"$OUT.lab" 2>&1 &
    lab=$!
    python3 drive.py "$OUT" "$@" 2>"$OUT.drive"
    driven=$?
    [ $driven = 0 ] || kill $lab
    wait $lab
    cat "$OUT".err[0-9] >"$OUT.err"
    [ $driven = 0 ] || fail "$OUT: $(cat "$OUT.drive" "$OUT.err" "$OUT.lab")"
    same "$OUT"
    told "$OUT"
}
lab calm 12:coordinator:0 30:coordinator:0
! grep -q '"kind":"lost"' calm.jsonl || fail "calm: $(grep incident calm.jsonl)"
lab lost 12:kill:3 12:coordinator:0 30:coordinator:0 30:host:2
[ "$(grep -c '"kind":"lost"' lost.jsonl)" = 2 ] || fail "lost: $(grep incident lost.jsonl)"
export LINESHAFT_FAULT=coordinator.taken@1=kill
lab worst 12:kill:1 30:kill:2

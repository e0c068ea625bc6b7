#!/bin/sh
# heal_hosts.sh -- machines that die, are cut off and come: a run over several hosts of a lab goes on, and ends with the losses
# and weights of the undisturbed run. bench/heal_hosts.sh has more of it, and measures.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
need_hosts
small_run
cp "$LINESHAFT_ROOT/tests/e2e/heal_hosts.py" drive.py
# Signs of life are looked at generously: this machine may have no time for seconds.
SET="--set heal.dead=30 --set heal.grow_wait=0 --set heal.grow_steps=2"
export LINESHAFT
(umask 077; head -c 32 /dev/urandom >job.secret)

# A host of the lab: the first one trains on $FIRST hosts, the next ones join at once, the others when a file tells them.
cat >host.sh <<'SH'
#!/bin/sh
me=$LINESHAFT_LAB_NODE first=${LINESHAFT_LAB_ADDRESSES%% *}:7001 secret=$PWD/job.secret
if [ "$me" = 0 ]; then
    # shellcheck disable=SC2086
    exec "$LINESHAFT" train run.yaml --json -n "$RANKS" --nodes "$FIRST" --listen "$first" --secret "$secret" --wait 120 \
        --set out="$OUT" $SET >"$OUT.fifo" 2>"$OUT.err"
fi
if [ "$me" -ge "$FIRST" ]; then
    i=0
    until [ -e "$OUT.come$me" ]; do
        i=$((i + 1))
        [ $i -lt 20000 ] || exit 9
        [ ! -e "$OUT.over" ] || exit 0
        sleep 0.02
    done
fi
echo $$ >"$OUT.pid$me"
[ "$me" != "${ELSEWHERE:-}" ] || cd elsewhere || exit 9
exec "$LINESHAFT" agent --join "$first" --secret "$secret" --wait 120 -n "$RANKS"
SH
chmod +x host.sh

# go OUT HOSTS FIRST RANKS PLAN...: a run in a lab, to which the plan happens; it must end well, with the weights it must have.
go() {
    OUT=$1 FIRST=$3 RANKS=$4
    export OUT FIRST RANKS SET
    mkfifo "$OUT.fifo"
    hosts=$2
    shift 4
    "$LINESHAFT" lab --nodes "$hosts" -- ./host.sh >"$OUT.lab" 2>&1 &
    lab=$!
    python3 drive.py "$OUT" "$@" 2>"$OUT.drive" || {
        kill $lab
        wait $lab
        fail "$OUT: $(cat "$OUT.drive" "$OUT.err" "$OUT.lab")"
    }
    touch "$OUT.over"
    wait $lab
    [ "$(field summary weights_hash "$OUT.jsonl")" = "$hash" ] || fail "$OUT: other weights: $(cat "$OUT.err")"
    losses "$OUT/events.jsonl" >got
    cmp -s want got || fail "$OUT: other losses: $(diff want got | head -n 4) $(cat "$OUT.err")"
    ! grep -q 'ERROR\|Sanitizer' "$OUT.err" "$OUT.lab" || fail "$OUT: $(cat "$OUT.err" "$OUT.lab")"
}
# is KEY VALUE...: of the last change of this run's members.
is() {
    grep '"generation":' "$OUT.jsonl" >changes
    while [ $# -gt 0 ]; do
        [ "$(field incident "$1" changes)" = "$2" ] || fail "$OUT: $1 is not $2: $(cat changes "$OUT.err")"
        shift 2
    done
}

# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json --set out=alone $SET
losses >want
hash=$(field summary weights_hash)

# A worker of the second host is killed: started again there, from the memory of the others.
go worker 2 2 2 12:kill:3
is kind lost ranks 4 restarted 1 source memory redone 0
grep -q 'rank 3 on lab1 was killed by signal 9' worker.err || fail "$(cat worker.err)"

# A host is destroyed: the others go on at once. A host joins, and the one that is not like the others is refused by name.
mkdir elsewhere
sed 's/seed: 3/seed: 4/' run.yaml >elsewhere/run.yaml
ELSEWHERE=4
export ELSEWHERE
go host 5 3 1 8:host:2 =2:come:4 =2:gone:4 =2:come:3 =3:none:0
is kind joined ranks 3 joined 1 source memory redone 0
grep -q '(lab2) was lost' host.err || fail "$(cat host.err)"
grep -q 'lab4 differs from the first node in: train (' host.lab || fail "$(cat host.lab host.err)"
! grep -q 'read\|resum' host.err || fail "something was read again: $(cat host.err)"
[ "$(grep -c '"generation":' host.jsonl)" = 2 ] || fail "$(grep incident host.jsonl)"

# The link of a host is cut: it is lost after a while; when it is back, it comes as a newcomer.
SET="--set heal.dead=4 --set heal.grow_wait=0 --set heal.grow_steps=2"
go cut 2 2 1 8:down:1 =1:up:1 =2:none:0
is kind joined ranks 2

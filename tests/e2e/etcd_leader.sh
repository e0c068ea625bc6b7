#!/bin/sh
# etcd_leader.sh -- heal.quorum: etcd on two machines, with a real etcd on a third: the first machine is lost or cut off, and the other one goes
# on, which votes of two could not allow; the other one is cut off, and the first goes on.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
command -v etcd >/dev/null || {
    echo "etcd is not here (Debian package etcd-server)"
    exit 77
}
need_hosts
small_run
cp "$LINESHAFT_ROOT/tests/e2e/recover_hosts.py" drive.py
export LINESHAFT LINESHAFT_STATE="$PWD/state"
(umask 077; head -c 32 /dev/urandom >job.secret)
cat >host.sh <<'SH'
#!/bin/sh
me=$LINESHAFT_LAB_NODE secret=$PWD/job.secret first=${LINESHAFT_LAB_ADDRESSES%% *}:7001
all=$(echo "${LINESHAFT_LAB_ADDRESSES% *}" | sed 's/ /:7001,/g'):7001
ip=${LINESHAFT_LAB_ADDRESSES##* }
url=http://$ip:2379
over() { [ -e "$OUT.over" ]; }
if [ "$me" = 2 ]; then
    etcd --name e --data-dir "$OUT.etcd" --listen-client-urls "$url" --advertise-client-urls "$url" --listen-peer-urls "http://$ip:2380" \
        --initial-advertise-peer-urls "http://$ip:2380" --initial-cluster "e=http://$ip:2380" --logger zap --log-level error >"$OUT.etcdlog" 2>&1 &
    until over; do sleep 0.1; done
    kill $!
    wait $!
    exit 0
fi
echo $$ >"$OUT.pid$me"
if [ "$me" = 0 ]; then
    # shellcheck disable=SC2086
    exec "$LINESHAFT" train run.yaml --json -n 1 --nodes 2 --listen "$first" --secret "$secret" --wait 120 --set out="$OUT" \
        --set heal.quorum=etcd --set "heal.etcd=[$url]" $SET >"$OUT.fifo" 2>"$OUT.err0"
fi
"$LINESHAFT" agent --join "$all" --secret "$secret" --wait 120 -n 1 >"$OUT.fifo" 2>"$OUT.err$me" &
echo $! >"$OUT.pid$me"
wait $!
echo $? >"$OUT.code$me"
SH
chmod +x host.sh

SET="--set train.steps=40 --set heal.dead=2 --set heal.grow_wait=1000"
export SET
# shellcheck disable=SC2086
run 0 "$LINESHAFT" train run.yaml --json --set out=alone $SET
losses >want
hash=$(field summary weights_hash)

# go OUT PLAN...: a run on two hosts, to which the plan happens: it must end well, from memory, with the weights it must have.
go() {
    OUT=$1
    export OUT
    mkfifo "$OUT.fifo"
    shift
    "$LINESHAFT" lab --nodes 3 -- ./host.sh >"$OUT.lab" 2>&1 &
    lab=$!
    python3 drive.py "$OUT" "$@" 2>"$OUT.drive"
    driven=$?
    touch "$OUT.over"
    [ $driven = 0 ] || kill $lab
    wait $lab
    cat "$OUT".err[0-9] >"$OUT.err"
    [ $driven = 0 ] || fail "$OUT: $(cat "$OUT.drive" "$OUT.err" "$OUT.lab" "$OUT.etcdlog")"
    ! grep -q 'ERROR\|Sanitizer' "$OUT.err" "$OUT.lab" || fail "$OUT: $(cat "$OUT.err" "$OUT.lab")"
    [ "$(field summary weights_hash "$OUT.jsonl")" = "$hash" ] || fail "$OUT: other weights: $(cat "$OUT.err")"
    losses "$OUT/events.jsonl" >got
    cmp -s want got || fail "$OUT: other losses: $(diff want got | head -n 4) $(cat "$OUT.err")"
    ! grep -q '"source":"checkpoint"\|"redone":[1-9]' "$OUT.jsonl" || fail "$OUT: $(grep '"generation":' "$OUT.jsonl")"
    grep '"kind":"lost"' "$OUT.jsonl" >lost || fail "$OUT: nothing was lost: $(cat "$OUT.err")"
    echo "    $OUT: $(head -n 1 "$OUT.drive"), $(sed -n '1s/.*\("redone":.*\)}/\1/p' lost)"
    run 0 "$LINESHAFT" ckpt verify "$OUT"
}

# The first machine dies.
go killed 12:host:0 =1:none:0
grep -q '"text":"node 0 (lab0), the coordinator, was lost: .*; node 1 (lab1) took over' lost || fail "$(cat lost)"
# It is cut off, from etcd as well: the other one goes on when the lease has run out; its own side makes no view, and ends.
go cut 12:down:0 =1:none:0
grep -q 'took over' lost || fail "$(cat lost)"
grep -q 'etcd does not answer this node\|the job goes on without this node' cut.err0 || fail "$(cat cut.err0)"
# The other one is cut off: the first goes on.
go other 12:down:1 =1:none:0
! grep -q 'took over' other.err || fail "$(cat other.err)"
